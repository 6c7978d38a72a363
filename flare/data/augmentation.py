"""Augmentation by symmetry: samples are mirrored or rotated, vectors along with the points.

If the physics has the symmetry, a transformed sample is as valid as the original.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flare.data.sample import Sample, Schema
from flare.utils.errors import DataError


@dataclass(frozen=True)
class Symmetry:
    """The mirrors and rotations that may be applied to a sample."""

    mirror: Sequence[str] = ()
    """Mirror planes: `x` is the plane x = 0, `x=y` the diagonal plane that swaps the two axes."""
    turn: Sequence[str] = ()
    """Two axes that span the plane of rotation about the origin, by any angle; empty for no rotation."""

    def __bool__(self) -> bool:
        return bool(self.mirror or self.turn)

    def image(self, schema: Schema, sample: Sample, rng: np.random.Generator) -> Sample:
        """Return a random image of a sample: each mirror is used with probability 1/2, the angle is uniform."""
        chosen = rng.random(len(self.mirror)) < 0.5
        mirrors = [mirror for mirror, wanted in zip(self.mirror, chosen, strict=True) if wanted]
        return transform_sample(schema, sample, mirrors, self.turn, rng.uniform(0, 2 * np.pi) if self.turn else 0.0)

    def check(self, schema: Schema) -> None:
        """Check that the effect on every field of a schema is defined.

        Raises:
            DataError: An axis is unknown, or a field has components that the symmetry cannot transform.
        """
        known = schema.fields[schema.points].components
        for mirror in self.mirror:
            axes = mirror.split("=")
            if not (set(axes) <= set(known) and len(set(axes)) == len(axes) <= 2):
                raise DataError(f"data.mirror has {mirror!r}; name one of {', '.join(known)}, or two, such as x=y")
        if self.turn and not (set(self.turn) <= set(known) and len(set(self.turn)) == len(self.turn) == 2):
            raise DataError(f"data.turn is {list(self.turn)}; name two axes of {', '.join(known)}")
        for name in schema.named("feature", "parameter", "target"):
            components = schema.fields[name].components
            if self and len(components) > 1 and not self._transforms(components, known):
                both = f"{', '.join(components)}, but the points have {', '.join(known)}"
                raise DataError(f"data.mirror and data.turn cannot transform {name!r}: its components are {both}")

    def _transforms(self, components: Sequence[str], known: Sequence[str]) -> bool:
        """Return whether a vector has both or neither of the axes that are swapped or rotated."""
        together = [set(mirror.split("=")) for mirror in self.mirror] + [set(self.turn)]
        return set(components) <= set(known) and all(
            axes <= set(components) or not axes & set(components) for axes in together
        )


def transform_sample(
    schema: Schema, sample: Sample, mirrors: Sequence[str] = (), turn: Sequence[str] = (), angle: float = 0.0
) -> Sample:
    """Mirror a sample in one plane after another, then rotate it.

    Args:
        schema: Schema of the sample.
        sample: Sample to transform. Scalar fields stay as they are.
        mirrors: Planes, as in `Symmetry.mirror`.
        turn: Two axes, as in `Symmetry.turn`.
        angle: Angle from the first axis of `turn` to the second, in radians.
    """
    values = dict(sample.values)
    for name in schema.named("points", "feature", "parameter", "target"):
        components = schema.fields[name].components
        if len(components) > 1:
            # Not `@`: its rounding can depend on the number of rows, and the share of a rank must equal these rows.
            values[name] = (values[name][..., None] * _matrix(components, mirrors, turn, angle)).sum(-2)
    return Sample(values, sample.cells, sample.notes)


def _matrix(components: Sequence[str], mirrors: Sequence[str], turn: Sequence[str], angle: float) -> np.ndarray:
    """Return a (C, C) float32 matrix that transforms row vectors from the right."""
    matrix = np.eye(len(components))
    for mirror in mirrors:
        axes = [components.index(axis) for axis in mirror.split("=") if axis in components]
        if len(axes) == 1:
            matrix[:, axes] *= -1
        else:
            matrix[:, axes] = matrix[:, axes[::-1]]
    if set(turn) & set(components):
        axes = [components.index(axis) for axis in turn]
        c, s = np.cos(angle), np.sin(angle)
        matrix[:, axes] = matrix[:, axes] @ np.array([[c, s], [-s, c]])
    return matrix.astype(np.float32)
