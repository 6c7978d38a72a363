"""A finished simulation, and what it says in two lines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from flare.physics.lpbf.build import Frame
from flare.physics.lpbf.grid import Ints
from flare.physics.lpbf.hexahedron import Array
from flare.physics.lpbf.setup import Setup
from flare.utils.text import counted


@dataclass(frozen=True)
class Outcome:
    """A finished simulation."""

    setup: Setup
    positions: Array
    """(N, 3) mm, nominal."""
    cells: Ints
    """(E, 8)."""
    cooled: Frame
    released: Frame
    interference: Array
    """(groups, 4): height above the nominal top (mm), and the place."""
    peak_temperature: Array
    """(groups,) °C, of part and plate."""
    tracked: Array
    """(groups, 4), see `flare.physics.lpbf.output.TRACKED`."""

    @property
    def under_recoater(self) -> Array:
        """(groups - 1, 4): the interference that counts. On the last group no layer is spread."""
        return self.interference[:-1]

    @property
    def hits(self) -> int:
        """Groups in which the recoater meets metal: the part stands more than a powder layer above its nominal top."""
        return int((self.under_recoater[:, 0] > self.setup.process.machine.layer).sum())

    @property
    def verdict(self) -> str:
        """On the recoater, in a few words."""
        return f"hits in {self.hits} of {counted(len(self.interference), 'group')}" if self.hits else "passes"


def in_short(outcome: Outcome) -> str:
    """Two lines: how far the part moves and where, its peak stress; what the recoater meets."""
    moved, stress = outcome.released.displacement[:, 2], outcome.released.centre_von_mises
    up, down, worst = int(moved.argmax()), int(moved.argmin()), int(stress.argmax())
    return (
        f"rises {moved[up]:.3f} mm at {place(outcome.positions[up])}, sinks {-moved[down]:.3f} mm at "
        f"{place(outcome.positions[down])}; peak stress {stress[worst]:.0f} MPa at {place(centre(outcome, worst))}\n"
        f"recoater {outcome.verdict}; {_worst_group(outcome)}"
    )


def place(position: ArrayLike) -> str:
    """`(12.0, -3.5, 0.6)`, mm."""
    return "({:.1f}, {:.1f}, {:.1f})".format(*(np.asarray(position) + 0.0))


def centre(outcome: Outcome, voxel: int) -> Array:
    """Of a voxel, by its number."""
    middle: Array = outcome.positions[outcome.cells[voxel]].mean(0)
    return middle


def _worst_group(outcome: Outcome) -> str:
    met = outcome.under_recoater
    if not len(met):
        return "with one layer group, no layer is spread on the part"
    worst = int(met[:, 0].argmax())
    if met[worst, 0] <= 0:
        return "no group stands above its nominal top"
    layers = met[worst, 0] / outcome.setup.process.machine.layer
    return (
        f"highest after group {worst + 1}: {met[worst, 0]:.3f} mm ({layers:.1f} layers) above nominal at "
        f"{place(met[worst, 1:])}"
    )
