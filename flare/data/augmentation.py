"""A sample in a mirror, or turned: its points and vectors move together, its numbers stay. Where the physics has that
symmetry the image is as true as the original, so that few samples teach more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flare.data.sample import Sample, Schema
from flare.utils.errors import DataError


@dataclass(frozen=True)
class Symmetry:
    """What may be done to a sample."""

    mirror: Sequence[str] = ()
    """Planes: `x` is x = 0, `x=y` the diagonal one, which exchanges the two axes."""
    turn: Sequence[str] = ()
    """Two axes in whose plane it may be turned about zero by any angle; none: it may not."""

    def __bool__(self) -> bool:
        return bool(self.mirror or self.turn)

    def image(self, schema: Schema, sample: Sample, rng: np.random.Generator) -> Sample:
        """Seen in each mirror or not, and turned by some angle, as the dice fall."""
        chosen = rng.random(len(self.mirror)) < 0.5
        mirrors = [mirror for mirror, wanted in zip(self.mirror, chosen, strict=True) if wanted]
        return moved(schema, sample, mirrors, self.turn, rng.uniform(0, 2 * np.pi) if self.turn else 0.0)

    def refuse_unknown(self, schema: Schema) -> None:
        """Where it is not clear what this does to every field."""
        known = schema.fields[schema.points].components
        for mirror in self.mirror:
            axes = mirror.split("=")
            if not (set(axes) <= set(known) and len(set(axes)) == len(axes) <= 2):
                raise DataError(
                    f"data.mirror has {mirror!r}; name an axis of the points of {schema.name!r} ({', '.join(known)}), "
                    f"or two for the plane between them, such as {'='.join(known[:2])}"
                )
        if self.turn and not (set(self.turn) <= set(known) and len(set(self.turn)) == len(self.turn) == 2):
            raise DataError(
                f"data.turn is {list(self.turn)}; name two axes of the points of {schema.name!r} ({', '.join(known)})"
            )
        for name in schema.named("feature", "parameter", "target"):
            components = schema.fields[name].components
            if self and len(components) > 1 and not self._moves(components, known):
                raise DataError(
                    f"data.{'mirror' if self.mirror else 'turn'}: {name!r} has the components {', '.join(components)}, "
                    f"the points {', '.join(known)}: what it does to them is not known. Name them alike, or do without"
                )

    def _moves(self, components: Sequence[str], known: Sequence[str]) -> bool:
        """Whether it is known what becomes of a vector: axes exchanged or turned are both in it, or neither."""
        together = [set(mirror.split("=")) for mirror in self.mirror] + [set(self.turn)]
        return set(components) <= set(known) and all(
            axes <= set(components) or not axes & set(components) for axes in together
        )


def moved(
    schema: Schema, sample: Sample, mirrors: Sequence[str] = (), turn: Sequence[str] = (), angle: float = 0.0
) -> Sample:
    """The sample in one mirror after another, then turned by `angle` (radians) from the first axis to the second."""
    values = dict(sample.values)
    for name in schema.named("points", "feature", "parameter", "target"):
        components = schema.fields[name].components
        if len(components) > 1:
            values[name] = values[name] @ _matrix(components, mirrors, turn, angle)
    return Sample(values, sample.cells, sample.notes)


def _matrix(components: Sequence[str], mirrors: Sequence[str], turn: Sequence[str], angle: float) -> np.ndarray:
    """(C, C) float32, to multiply rows with from the right."""
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
