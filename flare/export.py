"""A trained surrogate as one file for other programs: torch.export (.pt2) or ONNX (.onnx).

The file maps physical inputs [batch, points, in_dim] to physical fields [batch, points, out_dim]: the normalisers are
inside, batch and points are free. Before it gets its name it is compared with the original, at sizes not traced at.
"""

# B batch, N points

from __future__ import annotations

import copy
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from flare.data.sample import INPUT_ROLES
from flare.models import use_backend
from flare.surrogate import Surrogate
from flare.utils.errors import ConfigError, DataError, nearest, one_line
from flare.utils.files import making, refuse_existing

Format = Literal["torch", "onnx"]
SUFFIX: dict[str, str] = {"torch": ".pt2", "onnx": ".onnx"}
TOLERANCE = 1e-5
"""Largest difference from the original that is accepted, in parts of a channel's largest departure from its mean.

A model whose own float32 answers are farther than that from its float64 ones may differ by twice as much as they do.
"""
TRACED = (2, 37)
"""Batch and points of the example the graph is traced with: nothing is special about either."""
TRIALS = ((1, 1), (1, 2), (2, 37), (3, 64), (5, 1), (1, 2000))
"""Batch and points that are always tried; random ones follow."""
LARGEST_TRIAL = 3000
"""Points of a random one, at most."""

Run = Callable[[Tensor, Tensor | None], Tensor]
"""Inputs and mask -> fields, by the file that was written."""


@dataclass(frozen=True)
class Exported:
    """A file that was accepted, and how well it agrees."""

    path: Path
    error: float
    """Largest difference from the original beyond rounding, in parts of a channel's largest departure from its mean."""
    rounding: float
    """The same of the original in float32 from itself in float64: no file agrees better with either."""
    sizes: list[tuple[int, int]]
    """(batch, points) it was compared at."""
    differences: dict[str, float]
    """Channel -> largest difference from the original, physical."""
    steps: dict[str, float]
    """Channel -> the step of float32 at its largest value: no two programs agree better."""


def export(
    surrogate: Surrogate,
    path: str | os.PathLike[str],
    *,
    format: Format | None = None,
    mask: bool = False,
    trials: int = 4,
    seed: int = 0,
) -> Exported:
    """Write the surrogate for programs without flare, after comparing the file with the original.

    Args:
        path: ends in .pt2 or .onnx; must not exist.
        format: `torch` or `onnx`; None: as the path ends.
        mask: a second input [batch, points], True at real points, for batches of samples of several sizes.
        trials: random sizes to compare at, beside fixed ones that include a single point.
        seed: of the sizes and inputs.

    Raises:
        DataError: the file does not agree with the original to 1e-5, or as well as float32 can; nothing is written.
    """
    path = Path(path)
    kind = _format(path, format)
    write, open_file = _ways(kind)
    refuse_existing(path)
    original = copy.deepcopy(surrogate).cpu().eval()
    traced = use_backend(copy.deepcopy(original), "sdpa")  # attention as one standard operator, not as our kernels
    fixed = getattr(original.network, "grid", None)
    points = None if fixed is None else fixed[0] * fixed[1]
    with making(path) as temporary, _quiet(), torch.no_grad():
        example = _inputs(original, (TRACED[0], points or TRACED[1]), mask, torch.Generator().manual_seed(seed))
        batch = torch.export.Dim("batch", min=1)
        free = {0: batch} if points else {0: batch, 1: torch.export.Dim("points", min=1)}
        shapes = {"inputs": free, "mask": free if mask else None}
        try:
            program = torch.export.export(traced, example, dynamic_shapes=shapes, strict=False)
            write(program, temporary, about(surrogate, mask=mask))
        except RuntimeError as error:
            name = surrogate.model["name"]
            raise ConfigError(f"the model {name!r} cannot be exported as {kind}: {one_line(error)[:300]}") from None
        return _compare(original, open_file(temporary), path, mask, _sizes(points, trials, seed), seed)


def about(surrogate: Surrogate, *, mask: bool = False) -> dict[str, str]:
    """What a program needs to know of the file's numbers, kept inside it: the channels in order, and their units."""
    schema = surrogate.schema

    def channels(*roles: Any) -> list[dict[str, str]]:
        units = [schema.fields[name].unit for name in schema.named(*roles) for _ in schema.fields[name].components]
        return [{"name": n, "unit": unit} for n, unit in zip(schema.channels(*roles), units, strict=True)]

    return {
        "flare.schema": json.dumps(schema.to_json()),
        "flare.model": json.dumps(surrogate.model),
        "flare.inputs": json.dumps(channels(*INPUT_ROLES)),
        "flare.outputs": json.dumps(channels("target")),
        "flare.mask": json.dumps(mask),
    }


# ---- the two formats ------------------------------------------------------------------------------------------------


def _ways(format: str) -> tuple[Callable[[Any, Path, dict[str, str]], None], Callable[[Path], Run]]:
    """How to write a file of this format, and how to run it."""
    if format == "torch":
        return _write_torch, _open_torch
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as missing:
        message = f"ONNX needs the package {missing.name}; install it with:  pip install 'flare-engine[export]'"
        raise ConfigError(message) from None
    return _write_onnx, _open_onnx


def _write_torch(program: Any, path: Path, facts: dict[str, str]) -> None:
    torch.export.save(program, path, extra_files=facts)


def _open_torch(path: Path) -> Run:
    run = torch.export.load(path).module()
    return lambda inputs, mask: run(inputs, mask)


def _write_onnx(program: Any, path: Path, facts: dict[str, str]) -> None:
    names = ["inputs", "mask"] if json.loads(facts["flare.mask"]) else ["inputs"]
    exported = torch.onnx.export(program, input_names=names, output_names=["outputs"], dynamo=True, verbose=False)
    assert exported is not None
    exported.model.metadata_props.update(facts)
    exported.save(path, external_data=False)


def _open_onnx(path: Path) -> Run:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(inputs: Tensor, mask: Tensor | None) -> Tensor:
        given = {"inputs": inputs.numpy()} | ({} if mask is None else {"mask": mask.numpy()})
        return torch.from_numpy(session.run(["outputs"], given)[0])

    return run


# ---- the comparison -------------------------------------------------------------------------------------------------


def _compare(
    original: Surrogate, run: Run, path: Path, mask: bool, sizes: list[tuple[int, int]], seed: int
) -> Exported:
    generator = torch.Generator().manual_seed(seed + 1)
    exact = use_backend(copy.deepcopy(original).double(), "reference")
    largest, spread, difference, size_of, own = torch.zeros(5, original.schema.out_dim)
    for size in sizes:
        inputs, real = _inputs(original, size, mask, generator)
        truth = original(inputs, real)
        try:
            answer = run(inputs, real)
        except Exception as error:  # whatever a runtime makes of a graph that does not fit
            raise DataError(
                f"{path} was not written: it does not run for batch {size[0]} of {size[1]} points: "
                f"{one_line(error)[:300]}"
            ) from None
        if answer.shape != truth.shape:
            raise DataError(
                f"{path} was not written: it gives {list(answer.shape)} where the model gives {list(truth.shape)}"
            )
        # A field far from zero, such as an absolute pressure, cannot agree better than float32 can hold it.
        held = 2 * torch.finfo(torch.float32).eps * truth.abs()
        apart_by = (answer - truth).abs()
        gap = (apart_by - held).clamp_min(0).nan_to_num(nan=torch.inf)
        rounded = ((truth - exact(inputs.double(), real)).abs() - held).clamp_min(0).nan_to_num(0, 0).float()
        departure = (truth - original.target_norm.shift).abs()
        found = [rows if real is None else rows[real] for rows in (gap, departure, apart_by, truth.abs(), rounded)]
        tops = [rows.reshape(-1, original.schema.out_dim).amax(0) for rows in found]
        so_far = (largest, spread, difference, size_of, own)
        largest, spread, difference, size_of, own = map(torch.maximum, so_far, tops)
    spread = spread.clamp_min(torch.finfo(torch.float32).tiny)
    apart, rounding = float((largest / spread).max()), float((own / spread).max())
    accepted = max(TOLERANCE, 2 * rounding)
    if not apart <= accepted:
        raise DataError(
            f"{path} was not written: it differs from the model by {apart:.1e} of a field's range, {accepted:.0e} is "
            f"accepted. Were the weights trained at all, or are they not finite?"
        )
    names = original.schema.channels("target")
    differences = dict(zip(names, difference.tolist(), strict=True))
    steps = dict(zip(names, np.spacing(size_of.numpy()).tolist(), strict=True))
    return Exported(path, apart, rounding, sizes, differences, steps)


def _inputs(
    surrogate: Surrogate, size: tuple[int, int], mask: bool, generator: torch.Generator
) -> tuple[Tensor, Tensor | None]:
    """Random samples that look like the training data to the normaliser, and which of their points are real."""
    noise = torch.randn(*size, surrogate.schema.in_dim, generator=generator)
    if not mask:
        return surrogate.input_norm.decode(noise), None
    real = torch.rand(size, generator=generator) < 0.8
    real[:, 0] = True
    return surrogate.input_norm.decode(noise), real


def _sizes(points: int | None, trials: int, seed: int) -> list[tuple[int, int]]:
    rng = np.random.default_rng(seed)
    drawn = [(int(rng.integers(1, 5)), int(np.exp(rng.uniform(0, np.log(LARGEST_TRIAL))))) for _ in range(trials)]
    return [(batch, points or count) for batch, count in (*TRIALS, *drawn)]


def _format(path: Path, format: str | None) -> str:
    if format is None:
        found = [name for name, suffix in SUFFIX.items() if path.suffix == suffix]
        if not found:
            raise ConfigError(f"{path}: the name should end in .pt2 (torch) or .onnx, or say which with --format")
        return found[0]
    if format not in SUFFIX:
        raise ConfigError(f"unknown format {format!r}; {nearest(str(format), SUFFIX)}")
    if path.suffix != SUFFIX[format]:
        raise ConfigError(f"{path}: a file of the format {format!r} ends in {SUFFIX[format]}")
    return format


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporters narrate their passes; what matters to a user is the comparison that follows."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
