"""Export of a surrogate as one file for other programs: torch.export (.pt2) or ONNX (.onnx).

The file maps physical inputs [batch, points, in_dim] to physical fields [batch, points, out_dim]; batch and points are
dynamic, the normalizers are included. A file is kept only if it agrees with the original at other sizes as well.
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
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flare.data.sample import INPUT_ROLES
from flare.inference.surrogate import Surrogate
from flare.models import use_backend
from flare.utils.errors import ConfigError, DataError, one_line
from flare.utils.files import check_not_existing, create_file

TOLERANCE = 1e-5
"""Largest accepted difference from the original, relative to a channel's largest deviation from its mean.

If the float32 and float64 results of the original differ by more, twice their difference is accepted.
"""
TRACED = (2, 37)
"""Batch and points of the example that is traced."""
TRIALS = ((1, 1), (1, 2), (2, 37), (3, 64), (5, 1), (1, 2000))
"""Batch and points that are always compared; random ones follow."""
LARGEST_TRIAL = 3000
"""Largest number of points of a random size."""

Program = Callable[[Tensor, Tensor | None], Tensor]
"""Function of inputs and mask that runs an exported file."""


@dataclass(frozen=True)
class Exported:
    """An exported file and its agreement with the original."""

    path: Path
    error: float
    """Largest difference beyond rounding, relative to a channel's largest deviation from its mean."""
    sizes: list[tuple[int, int]]
    """(batch, points) of the comparisons."""
    differences: dict[str, float]
    """Channel -> largest difference in physical units."""


def export(surrogate: Surrogate, path: str | os.PathLike[str], *, mask: bool = False, trials: int = 4) -> Exported:
    """Write a surrogate for programs without flare, after comparing the file with the original.

    Args:
        surrogate: The surrogate.
        path: File to write, ending in .pt2 (torch.export) or .onnx; must not exist.
        mask: Add a second input [batch, points], True at real points, for batches of samples of several sizes.
        trials: Number of random sizes to compare, beside fixed ones that include a single point.

    Raises:
        ConfigError: The suffix is unknown, a package is missing, or the model cannot be exported.
        DataError: The file does not agree with the original to 1e-5, or as well as float32 allows. It is not written.
    """
    path = Path(path)
    write, open_file = _backend(path)
    check_not_existing(path)
    original = copy.deepcopy(surrogate).cpu().eval()
    traced = use_backend(copy.deepcopy(original), "sdpa")  # standard operators instead of our kernels
    fixed = getattr(original.network, "grid", None)
    points = None if fixed is None else fixed[0] * fixed[1]
    with create_file(path) as temporary, _quiet(), torch.no_grad():
        example = _inputs(original, (TRACED[0], points or TRACED[1]), mask, torch.Generator().manual_seed(0))
        batch = torch.export.Dim("batch", min=1)
        free = {0: batch} if points else {0: batch, 1: torch.export.Dim("points", min=1)}
        shapes = {"inputs": free, "mask": free if mask else None}
        try:
            program = torch.export.export(traced, example, dynamic_shapes=shapes, strict=False)
            write(program, temporary, about(surrogate, mask=mask))
        except RuntimeError as error:
            name = surrogate.model["name"]
            raise ConfigError(f"the model {name!r} cannot be exported as {path.suffix}: {one_line(error)}") from None
        return _compare(original, open_file(temporary), path, mask, _sizes(points, trials))


def about(surrogate: Surrogate, *, mask: bool = False) -> dict[str, str]:
    """Return the metadata of an exported file: channels in order, their units, schema and model."""
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


def _backend(path: Path) -> tuple[Callable[[Any, Path, dict[str, str]], None], Callable[[Path], Program]]:
    """Return the functions that write and open a file, by its suffix."""
    if path.suffix == ".pt2":
        return _write_torch, _open_torch
    if path.suffix != ".onnx":
        raise ConfigError(f"{path}: the name must end in .pt2 (torch) or .onnx")
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


def _open_torch(path: Path) -> Program:
    return torch.export.load(path).module()


def _write_onnx(program: Any, path: Path, facts: dict[str, str]) -> None:
    names = ["inputs", "mask"] if json.loads(facts["flare.mask"]) else ["inputs"]
    exported = torch.onnx.export(program, input_names=names, output_names=["outputs"], dynamo=True, verbose=False)
    assert exported is not None
    exported.model.metadata_props.update(facts)
    exported.save(path, external_data=False)


def _open_onnx(path: Path) -> Program:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(inputs: Tensor, mask: Tensor | None) -> Tensor:
        given = {"inputs": inputs.numpy()} | ({} if mask is None else {"mask": mask.numpy()})
        return torch.from_numpy(session.run(["outputs"], given)[0])

    return run


# ---- the comparison -------------------------------------------------------------------------------------------------


def _compare(original: Surrogate, run: Program, path: Path, mask: bool, sizes: list[tuple[int, int]]) -> Exported:
    generator = torch.Generator().manual_seed(1)
    exact = use_backend(copy.deepcopy(original).double(), "reference")
    tops = []
    for size in sizes:
        inputs, real = _inputs(original, size, mask, generator)
        truth = original(inputs, real)
        try:
            answer = run(inputs, real)
        except Exception as reason:  # runtimes raise many types
            raise DataError(f"{path} was not written: it fails for a batch of {size}: {one_line(reason)}") from None
        difference = (answer - truth).abs()
        # A field far from zero, such as an absolute pressure, is limited by the precision of float32.
        held = 2 * torch.finfo(torch.float32).eps * truth.abs()
        rounding = ((truth - exact(inputs.double(), real)).abs() - held).clamp_min(0).nan_to_num(0, 0).float()
        gap = (difference - held).clamp_min(0).nan_to_num(nan=torch.inf)
        found = [gap, (truth - original.target_norm.shift).abs(), difference, rounding]
        channels = [(rows if real is None else rows[real]).reshape(-1, original.schema.out_dim) for rows in found]
        tops.append(torch.stack([rows.amax(0) for rows in channels]))
    gap, spread, difference, rounding = torch.stack(tops).amax(0)
    spread = spread.clamp_min(torch.finfo(torch.float32).tiny)
    error = float((gap / spread).max())
    accepted = max(TOLERANCE, 2 * float((rounding / spread).max()))
    if not error <= accepted:
        raise DataError(
            f"{path} was not written: it differs from the model by {error:.1e} of a field's range, {accepted:.0e} is "
            f"accepted. Check that the weights are trained and finite"
        )
    names = original.schema.channels("target")
    return Exported(path, error, sizes, dict(zip(names, difference.tolist(), strict=True)))


def _inputs(
    surrogate: Surrogate, size: tuple[int, int], mask: bool, generator: torch.Generator
) -> tuple[Tensor, Tensor | None]:
    """Draw random inputs with the statistics of the training data, and a mask."""
    noise = torch.randn(*size, surrogate.schema.in_dim, generator=generator)
    if not mask:
        return surrogate.input_norm.decode(noise), None
    real = torch.rand(size, generator=generator) < 0.8
    real[:, 0] = True
    return surrogate.input_norm.decode(noise), real


def _sizes(points: int | None, trials: int) -> list[tuple[int, int]]:
    rng = np.random.default_rng(0)
    drawn = [(int(rng.integers(1, 5)), int(np.exp(rng.uniform(0, np.log(LARGEST_TRIAL))))) for _ in range(trials)]
    return [(batch, points or count) for batch, count in (*TRIALS, *drawn)]


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the messages of the exporters."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
