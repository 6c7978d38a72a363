"""The error of a part that cannot be built."""

from __future__ import annotations

from flare.utils.errors import DataError

THINNER = "thinner than a voxel"
"""The reason of a part that has no voxel inside."""


class Unfit(DataError):
    """Says to a person what is wrong; `reason` is the kind of fault in a word or two, for counting."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type[Unfit], tuple[str, str]]:
        return type(self), (self.reason, str(self))  # so that it crosses from worker processes whole
