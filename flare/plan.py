"""What a run will need before it is begun: memory and time, from a short calibration of the same model on this machine.

A FLARE model costs the same for every point and block, so small steps tell of large ones. With w = batch x points of a
rank, B blocks and M latents:

    time   = t0 + t1 w + t2 w B + t3 w B M          memory = m0 + m1 w + m2 w B + m3 tiles + what is known

Known are the weights and what goes with them, the latents of the blocks, and the features of a stream; the tiles are
scores, where PyTorch computes them. Chunks of a stream are all alike: its memory is m0 and what is known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flare.mixer import native
from flare.mixer.chunked import TILE
from flare.trial import Need, Setting, measure
from flare.utils.environment import processor
from flare.utils.errors import DataError
from flare.utils.files import write_json

SMALL = (4 * 2**20, 16 * 2**20)
"""Bytes of an array of all points and channels in the larger steps of a calibration, where arrays are kept: as in the
setting, between these two."""
LARGE = (36 * 2**20, 52 * 2**20)
"""The same in its two sizes of steps, where arrays are handed back."""
MOST_LATENTS = 512
"""Calibrations take no more than this and four times this: their time would grow with it."""
MARGIN = 1.15
"""What is planned to need less than the memory over this fits: plans may be off by as much, and must not be low."""
Tell = Callable[[str], None]


def silent(text: str) -> None:
    """Tells nobody."""


@dataclass(frozen=True)
class Calibration:
    """Coefficients of the two laws."""

    about: Mapping[str, Any]
    """What they hold for; see `about`."""
    seconds: list[float]
    memory: list[float]

    def predict(self, setting: Setting) -> Need:
        time = float(_time_terms(setting) @ np.array(self.seconds))
        return Need(float(_memory_terms(setting) @ np.array(self.memory)) + setting.known_mb, time)


def about(setting: Setting) -> dict[str, Any]:
    """What a calibration depends on: all of a setting but points, batch, blocks and latents, the way its arrays are
    freed, and the machine. As JSON has it."""
    free = {"points", "batch", "model"}
    sizes = {key: value for key, value in setting.sizes.items() if key not in ("blocks", "latents")}
    rest = {key: value for key, value in asdict(setting).items() if key not in free}
    machine = {
        "processor": processor() if setting.device == "cpu" else torch.cuda.get_device_name(setting.device),
        "threads": setting.threads,
        "kernels": native.why_not() is None,
        "torch": str(torch.__version__),
    }
    return json.loads(json.dumps(rest | {"model": sizes, "hands_back": setting.hands_back, "machine": machine}))


def calibrate(setting: Setting, tell: Tell = silent) -> Calibration:
    """Five small trials of the same model with fewer blocks."""
    trials = _trials(setting)
    needs = []
    for number, tried in enumerate(trials, 1):
        sizes = f"{tried.points:,} points, {tried.blocks} block(s), {tried.latents} latents"
        tell(f"calibrating {setting.kind}, step {number} of {len(trials)}: {sizes}")
        needs.append(measure(tried))
    seconds = _fit([_time_terms(s) for s in trials], [n.seconds for n in needs])
    memory = [n.memory_mb - s.known_mb for s, n in zip(trials, needs, strict=True)]
    return Calibration(about(setting), seconds, _fit([_memory_terms(s) for s in trials], memory))


def _trials(setting: Setting) -> list[Setting]:
    more = 3 if setting.by_kernels else 2  # PyTorch's own operators keep much: trials should fit where the run does
    latents = min(setting.latents, MOST_LATENTS)
    small, large = _sizes(setting)
    tries = [(small, 1, latents), (large, 1, latents), (small, more, latents), (large, more, latents)]
    tries += [(small, more, 4 * latents)]
    return [
        replace(setting, points=points, batch=1, model={**setting.model, "blocks": blocks, "latents": count})
        for points, blocks, count in dict.fromkeys(tries)
    ]


def _sizes(setting: Setting) -> tuple[int, int]:
    """Points of the smaller and the larger trials."""
    if setting.streams:
        return 2 * setting.chunk, 3 * setting.chunk
    if setting.hands_back:
        small, large = (size // setting.row for size in LARGE)
        return small, large
    low, high = (size // setting.row for size in SMALL)
    large = min(max(setting.work, low), high)
    return large // 4, large


class Planner:
    """Needs of settings, by calibrations that are made when they are first asked for.

    Args:
        path: a file that keeps them, of any number of models and machines; those that fit are taken from it.
        tell: called with what goes on while calibrating.
    """

    def __init__(self, path: Path | None = None, tell: Tell = silent) -> None:
        self.path, self.tell = path, tell
        self.calibrations = _read(path) if path is not None and path.exists() else []

    def need(self, setting: Setting) -> Need:
        return self._calibration(setting).predict(setting)

    def largest(self, setting: Setting, memory_mb: float) -> dict[str, Setting | None]:
        """The setting with the most points, batch or latents, the others as they are, whose memory fits; None where not
        even one does. There are never more latents than points: they could not make the mixing richer."""

        def latents(count: int) -> Setting:
            return replace(setting, model={**setting.model, "latents": count})

        return {
            "points": self._most(lambda count: replace(setting, points=count), setting.hands_back, memory_mb),
            "samples at a time": self._most(lambda count: replace(setting, batch=count), setting.hands_back, memory_mb),
            "latents": self._most(latents, setting.hands_back, memory_mb, setting.points),
        }

    def _most(
        self, change: Callable[[int], Setting], is_large: bool, memory_mb: float, limit: int = 2**40
    ) -> Setting | None:
        """By the law of large arrays if any of these fit, else, or where that is clear already, of small ones."""

        def fits(count: int) -> bool:
            return fits_into(self.need(change(count)).memory_mb, memory_mb)

        kept = _last(lambda count: not change(count).hands_back, 1, limit)
        beyond = kept < limit and (is_large or fits(kept)) and fits(kept + 1)
        most = _last(fits, kept + 1, limit) if beyond else _last(fits, 1, kept)
        return change(most) if most else None

    def _calibration(self, setting: Setting) -> Calibration:
        wanted = about(setting)
        for known in self.calibrations:
            if known.about == wanted:
                return known
        self._tell_of_other_machines(wanted)
        made = calibrate(setting, self.tell)
        self.calibrations.append(made)
        if self.path is not None:
            write_json(self.path, {"calibrations": [asdict(known) for known in self.calibrations]})
        return made

    def _tell_of_other_machines(self, wanted: Mapping[str, Any]) -> None:
        ours = wanted["machine"]
        for known in self.calibrations:
            theirs = known.about["machine"]
            if {**known.about, "machine": ours} == wanted:
                differ = [
                    f"{key} {theirs.get(key)}, here {value}" for key, value in ours.items() if theirs.get(key) != value
                ]
                self.tell(f"{self.path} knows this from another machine ({'; '.join(differ)}): measuring here")
                return


def _read(path: Path) -> list[Calibration]:
    try:
        found = [Calibration(**record) for record in json.loads(path.read_text(encoding="utf-8"))["calibrations"]]
        for known in found:
            if not isinstance(known.about["machine"], dict):
                raise TypeError("a calibration does not say of which machine it is")
            if not np.isfinite(np.array([known.seconds, known.memory], float).reshape(2, 4)).all():
                raise ValueError("a law should have four numbers")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{path} is no file of calibrations: {error!r}; name another") from None
    return found


def fits_into(need_mb: float, memory_mb: float) -> bool:
    """What `flare plan` calls fitting and `flare train` begins."""
    return MARGIN * need_mb <= memory_mb


def surely_fits(setting: Setting, memory_mb: float) -> bool:
    """By a bound that needs no calibration: PyTorch's own operators keep less than half as many arrays of C channels a
    block, and less than 8 tiles of scores."""
    kv_depth, ffn_depth = (int(setting.sizes.get(name, 3)) for name in ("kv_depth", "ffn_depth"))
    ratio = int(setting.sizes.get("ffn_ratio") or (4 if setting.sizes.get("ffn") == "standard" else 1))
    arrays = (
        (30 + 6 * (kv_depth + ratio * (ffn_depth + 1))) * 4 * setting.channels * setting.work * (setting.blocks + 1)
    )
    return 1024 + setting.known_mb + (arrays + 8 * 4 * _scores_of_a_tile(setting)) / 2**20 < memory_mb


def _time_terms(setting: Setting) -> np.ndarray:
    w, b, m = setting.work, setting.blocks, setting.latents
    return np.array([1.0, w, w * b, w * b * m])


def _memory_terms(setting: Setting) -> np.ndarray:
    if setting.streams:
        return np.array([1.0, 0, 0, 0])
    tiles = _scores_of_a_tile(setting) if setting.shared == "points" and not setting.by_kernels else 0
    return np.array([1.0, setting.work, setting.work * setting.blocks, tiles])


def _scores_of_a_tile(setting: Setting) -> int:
    return setting.batch * setting.heads * setting.latents * min(setting.points, TILE)


def _fit(terms: list[np.ndarray], values: list[float]) -> list[float]:
    """Coefficients of at least zero that make the relative errors least."""
    from scipy.optimize import nnls

    a, y = np.stack(terms), np.array(values)
    size = np.where(a.any(0), a.max(0), 1.0)
    found, _ = nnls(a / size / y[:, None], np.ones(len(y)))
    return (found / size).tolist()


def _last(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The last of low … high for which it holds; low - 1 where it does not even for the first. What does not hold for a
    number must not hold for a larger one."""
    if low > high or not holds(low):
        return low - 1
    step = 1
    while low + step <= high and holds(low + step):
        low, step = low + step, 2 * step
    high = min(high + 1, low + step)  # the first for which it is known, or said, not to hold
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def per_rank(points: int, ranks: int) -> int:
    """Points of a sample on the rank that has most."""
    return math.ceil(points / ranks)
