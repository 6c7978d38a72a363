"""A folder of parts: any with part files in it, or the Fusion 360 Gallery segmentation set as it is unpacked.

    parts = PartFolder("s2.0.1_extended_step", split="train")
    for name, surface in parts:
        ...
    parts.rejected          # {"open": 3, "several bodies": 12}

That set (https://github.com/AutodeskAILab/Fusion360GalleryDataset; for non-commercial research) has STEP files in
`breps/step`, meshes in `meshes`, and names of its two splits in `train_test.json`.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from flare.mesh.cad import CAD
from flare.mesh.read import TRIANGLES, read_part
from flare.mesh.surface import Surface
from flare.mesh.unfit import Unfit
from flare.utils.errors import ConfigError, DataError, FlareError, nearest, one_line

SPLITS = "train_test.json"
PLACES = ("meshes", "breps/step", "")  # the first that holds part files; meshes are the faster to read


class PartFolder:
    """Parts of a folder in order of their names; a bad file is counted and passed over.

    A part that is there in several formats is read from one of them: triangles before CAD.
    """

    def __init__(self, folder: str | os.PathLike[str], *, split: str | None = None, unit: str | None = None) -> None:
        """Look for part files; nothing is read yet.

        Args:
            folder: of part files, or the root of the Fusion 360 Gallery segmentation set.
            split: a key of its `train_test.json`, "train" or "test"; None: every part.
            unit: as in `read_part`; None where parts are scaled to the build volume anyway.

        Raises:
            DataError: there is no such folder, or no part in it.
        """
        self.folder, self.unit = Path(folder), unit
        self.files = _part_files(self.folder)
        """Name -> file, sorted by name."""
        if split is not None:
            chosen = _names(self.folder, split)
            self.files = {name: path for name, path in self.files.items() if name in chosen}
        if not self.files:
            kinds = ", ".join((*TRIANGLES, *CAD))
            raise DataError(f"{self.folder}: no part{f' of split {split!r}' if split else ''} in it; parts are {kinds}")
        self.faults: dict[str, Unfit] = {}
        """Name -> what was wrong, of the parts read so far."""

    def __len__(self) -> int:
        """Files found, good or bad."""
        return len(self.files)

    def __iter__(self) -> Iterator[tuple[str, Surface]]:
        """Name and surface of each part that is one sound solid."""
        for name in self.files:
            try:
                surface = self.read(name)
            except Unfit as fault:
                self.faults[name] = fault
            else:
                yield name, surface

    def read(self, name: str) -> Surface:
        """One part by name.

        Raises:
            Unfit: it is no sound solid, or the reader failed in a way of its own.
        """
        if name not in self.files:
            raise DataError(f"{self.folder}: no part {name!r}; {nearest(name, self.files)[:200]}")
        try:
            return read_part(self.files[name], unit=self.unit)
        except FlareError:  # unfit, or a reader that is missing altogether
            raise
        except Exception as error:  # one file in thousands must not stop the others
            message = f"{self.files[name]} cannot be read ({type(error).__name__}: {one_line(error)[:200]})"
            raise Unfit("unreadable", message) from error

    @property
    def rejected(self) -> dict[str, int]:
        """Reason -> parts passed over so far, the most frequent first."""
        return dict(Counter(fault.reason for fault in self.faults.values()).most_common())


def _part_files(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    kinds = (*TRIANGLES, *CAD)
    for place in PLACES:
        here = folder / place
        found = [p for p in here.iterdir() if p.suffix.lower() in kinds and p.is_file()] if here.is_dir() else []
        if found:
            found.sort(key=lambda p: (kinds.index(p.suffix.lower()), p.name))
            first: dict[str, Path] = {}
            for path in found:
                first.setdefault(path.stem, path)
            return dict(sorted(first.items()))
    return {}


def _names(folder: Path, split: str) -> set[str]:
    path = folder / SPLITS
    try:
        splits = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file, so there is no split {split!r}; leave out --split") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {one_line(error)}") from None
    if not isinstance(splits, dict) or not isinstance(splits.get(split), list):
        known = list(splits) if isinstance(splits, dict) else []
        raise ConfigError(f"{path} has no split {split!r}; {nearest(split, known)}")
    return {str(name) for name in splits[split]}
