"""A surrogate: a network with its normalisers, field names and units. Physical values in, physical values out."""

# B batch, N points

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from flare.code import Code, encode
from flare.data.normalization import Affine
from flare.data.sample import INPUT_ROLES, Field, Sample, Schema
from flare.inference import Chunk, as_fields, empty_outputs, predict_into
from flare.models import build_model
from flare.models.streaming import CHUNK, spans
from flare.utils.errors import CheckpointError, ConfigError, DataError, MissingInputError, nearest, one_line

VERSION = 1
"""Of the files of a saved surrogate."""
AnyModule = TypeVar("AnyModule", bound=nn.Module)


class Surrogate(nn.Module):
    """Callers see physical values only; nobody outside this class meets an encoded number.

    Args:
        model: `{"name": "flare", "channels": 64, ...}`, the network to build.
        schema: what the inputs and targets mean.
        input_norm: of the input channels; None leaves room for a state_dict to fill.
        target_norm: of the target channels; likewise.
    """

    def __init__(
        self,
        model: Mapping[str, Any],
        schema: Schema,
        input_norm: Affine | None = None,
        target_norm: Affine | None = None,
    ) -> None:
        super().__init__()
        self.model = dict(model)
        self.schema = schema
        sizes = {key: value for key, value in model.items() if key != "name"}
        self.network = build_model(model["name"], schema.in_dim, schema.out_dim, **sizes)
        self.input_norm = input_norm or Affine(np.zeros(schema.in_dim), np.ones(schema.in_dim))
        self.target_norm = target_norm or Affine(np.zeros(schema.out_dim), np.ones(schema.out_dim))

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, N, in_dim] -> [B, N, out_dim], both physical; `mask` is [B, N], True at real points."""
        encoded = self.network(self.input_norm.encode(inputs), mask)
        # Mixed precision ends here: physical values keep the digits of the normaliser.
        return self.target_norm.decode(encoded.to(self.target_norm.scale.dtype))

    @property
    def about(self) -> dict[str, Any]:
        """All that is needed to build it anew."""
        return {"model": self.model, "schema": self.schema.to_json()}

    def predict(
        self,
        points: ArrayLike,
        *,
        chunk: Chunk = "auto",
        scratch: str | os.PathLike[str] | None = None,
        **fields: ArrayLike,
    ) -> dict[str, np.ndarray]:
        """The target fields at the points of one sample, in physical units.

        Args:
            points: (N, dimensions).
            chunk: points at a time, the same answer in bounded memory; `auto`: where there are many; `whole`: never.
            scratch: folder for what does not fit into memory then; None is the system's own.
            fields: the dataset's features, (N,) or (N, channels), and parameters, a number or (channels,), by name.

        Returns:
            Target name -> (N,), or (N, channels) for a field of several components. `units` says in what.

        Raises:
            DataError: a field that is missing, unknown, of the wrong shape, or not finite; or no number comes of it.
        """
        sample = self.sample(points, fields)
        outputs = empty_outputs(self, len(sample.values[self.schema.points]))
        predict_into(self, sample, outputs, chunk=chunk, scratch=scratch)
        return as_fields(outputs)

    def predict_sample(
        self, sample: Sample, *, chunk: Chunk = "auto", scratch: str | os.PathLike[str] | None = None
    ) -> dict[str, np.ndarray]:
        """`predict` for a sample of a dataset with the fields of this model."""
        inputs = {name: sample.values[name] for name in self.schema.named("feature", "parameter")}
        return self.predict(sample.values[self.schema.points], chunk=chunk, scratch=scratch, **inputs)

    def encode(
        self,
        points: ArrayLike,
        *,
        chunk: Chunk = "auto",
        scratch: str | os.PathLike[str] | None = None,
        **fields: ArrayLike,
    ) -> Code:
        """All that this model knows of a sample, in a few latents: `encode(points).query(others)` is its field there.

        Arguments are those of `predict`.
        """
        return encode(self, self.sample(points, fields), chunk=chunk, scratch=scratch)

    @property
    def device(self) -> torch.device:
        return self.input_norm.shift.device

    @property
    def units(self) -> dict[str, str]:
        """Field name -> unit, of inputs and targets."""
        return {name: field.unit for name, field in self.schema.fields.items()}

    def check_fields(self, schema: Schema, where: str | os.PathLike[str]) -> None:
        """Refuse data whose fields, or their order as channels, are not those this model was trained on."""
        for name in [*self.schema.named(*INPUT_ROLES, "target"), *schema.named(*INPUT_ROLES, "target")]:
            mine, theirs = (_meaning(fields.get(name)) for fields in (self.schema.fields, schema.fields))
            if mine != theirs:
                raise DataError(f"{where} does not fit this model: field {name!r} is {theirs}, trained on {mine}")
        mine, theirs = (", ".join(s.channels(*INPUT_ROLES, "target")) for s in (self.schema, schema))
        if mine != theirs:
            raise DataError(f"{where} does not fit this model: its channels are {theirs}, trained on {mine}")

    def sample(self, points: ArrayLike, fields: Mapping[str, ArrayLike]) -> Sample:
        """The inputs of one sample by name, as `predict` takes them, checked; arrays may be memory-mapped."""
        wanted = self.schema.named(*INPUT_ROLES)
        given: dict[str, ArrayLike] = {self.schema.points: points, **fields}
        for name in given:
            if name not in wanted:
                raise DataError(f"this model takes no field {name!r}; {nearest(name, wanted)}")
        for name in wanted:
            if name not in given:
                raise MissingInputError(
                    f"the field {name!r} ({self.schema.fields[name].role}) is missing; the model needs {wanted}", name
                )
        count = len(np.atleast_2d(points))
        with np.errstate(over="ignore"):  # what is too large for float32 is refused as infinity
            return Sample({name: self._shaped(name, values, count) for name, values in given.items()})

    def _shaped(self, name: str, values: ArrayLike, count: int) -> np.ndarray:
        field = self.schema.fields[name]
        width = len(field.components)
        array = np.asarray(values)
        if array.dtype.kind not in "fiub":
            raise DataError(f"{name!r} holds {array.dtype}; real numbers are expected")
        if not isinstance(values, np.memmap):  # which stays on disk, as it is
            array = array.astype(np.float32, copy=False)
        shape = (width,) if field.role == "parameter" else (count, width)
        if array.shape != shape and not (width == 1 and array.shape == shape[:-1]):
            wanted = (
                f"({width},)"
                if field.role == "parameter"
                else f"({'N' if name == self.schema.points else count}, {width})"
            )
            raise DataError(f"{name!r} has shape {array.shape}, expected {wanted}: {', '.join(field.components)}")
        if not array.size:
            raise DataError(f"{name!r} is empty: there are no points")
        array = array.reshape(shape)
        _refuse_not_finite(name, array)
        return array


def _refuse_not_finite(name: str, array: np.ndarray) -> None:
    """As float32, which a network sees, and a chunk at a time: of an array on disk all may not fit into memory."""
    count, first = 0, list[int]()
    for start, stop in spans(len(array), CHUNK):
        bad = np.argwhere(~np.isfinite(array[start:stop].astype(np.float32, copy=False)))
        if len(bad) and not count:
            first = [start + int(bad[0][0]), *bad[0][1:].tolist()]
        count += len(bad)
    if count:
        raise DataError(f"{name!r} has NaN or infinity at {count:,} places (first: {first})")


def _meaning(field: Field | None) -> str:
    return f"{field.role} ({', '.join(field.components)}) in {field.unit}" if field else "absent"


def save_model(state: Mapping[str, Tensor], about: Mapping[str, Any], folder: Path) -> None:
    """Write weights and normalisers (safetensors) and what they are (JSON) into an existing folder."""
    save_file({k: v.contiguous() for k, v in state.items()}, folder / "model.safetensors")
    (folder / "model.json").write_text(json.dumps({"version": VERSION, **about}, indent=1) + "\n", encoding="utf-8")


def load_surrogate(folder: Path, *, weights: str = "model.safetensors") -> Surrogate:
    """Read what `save_model` wrote; nothing else is needed, and nothing is unpickled."""
    try:
        about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        if about["version"] != VERSION:
            raise CheckpointError(
                f"{folder}: format version {about['version']}, this flare reads {VERSION}; update flare"
            )
        if about.get("holds", "fields") != "fields":
            raise CheckpointError(
                f"{folder} holds a classifier of {about['holds']}, not of fields; from Python it is read by "
                f"flare.sequence.load_classifier, and judged by:  flare evaluate"
            )
        surrogate = Surrogate(about["model"], Schema.from_json(about["schema"]))
    except FileNotFoundError:
        raise CheckpointError(f"{folder} holds no saved model (no model.json)") from None
    except (json.JSONDecodeError, KeyError, TypeError, ConfigError, DataError) as error:
        raise CheckpointError(f"{folder / 'model.json'} is damaged or of another flare: {error}") from None
    load_weights(surrogate, folder / weights)
    return surrogate


def load_weights(
    surrogate: nn.Module, path: Path, fill: Callable[[nn.Module, dict[str, Tensor]], object] = nn.Module.load_state_dict
) -> None:
    """Fill a module from a safetensors file, or say which tensor does not belong."""
    state = read_tensors(path)
    own = surrogate.state_dict()
    for name in own.keys() | state.keys():
        a, b = own.get(name), state.get(name)
        if a is None or b is None or a.shape != b.shape:
            shapes = [("absent" if t is None else str(list(t.shape))) for t in (a, b)]
            raise CheckpointError(
                f"{path} is of another model: {name} is {shapes[0]} in the model and {shapes[1]} in the file. "
                f"Use the checkpoint together with the configuration it was trained with"
            )
    fill(surrogate, state)


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged or truncated: {error}") from None


def load(run: str | os.PathLike[str], *, checkpoint: str = "last", ema: bool = False, device: str = "cpu") -> Surrogate:
    """Load a trained surrogate, ready to predict.

    Args:
        run: Run folder, or the name of a folder in `pretrained/`.
        checkpoint: `last`, as the paper reports, or `best` on the evaluation split.
        ema: the running average of the weights, where the run kept one.
        device: `cpu`, `cuda`, …, or `auto` for the GPU where there is one.
    """
    folder = find_checkpoint(Path(run), checkpoint)
    if ema and not (folder / "ema.safetensors").exists():
        raise CheckpointError(f"{folder} has no averaged weights; train with --optim.ema 0.999 to keep them")
    surrogate = load_surrogate(folder, weights="ema.safetensors" if ema else "model.safetensors")
    return placed(surrogate, device)


def placed(model: AnyModule, device: str) -> AnyModule:
    """On the device, `auto` for the GPU where there is one, and ready to answer."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return model.to(device).eval()
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ConfigError(f"device {device!r} cannot be used here: {one_line(error)}") from None


def find_checkpoint(run: Path, name: str = "last") -> Path:
    """A run's checkpoint folder; also the one a kill caught between the two renames of a new one."""
    if not run.exists() and str(run) in pretrained_names():
        run = pretrained_folder() / run
    folder = run / "checkpoints" / name
    if (run / "dataset.json").exists():
        raise CheckpointError(f"{run} is a dataset, not a run folder")
    if not folder.exists() and previous(folder).exists():
        return previous(folder)
    if not folder.exists():
        what = f"has no checkpoint {name!r} yet" if run.is_dir() else "does not exist"
        raise CheckpointError(f"run {run} {what}. Train one with:  flare train --preset NAME --out {run}")
    return folder


def pretrained_folder() -> Path:
    """Return the folder of the trained models that come with this package."""
    package = Path(__file__).parent
    return package / "pretrained" if (package / "pretrained").is_dir() else package.parent / "pretrained"


def pretrained_names() -> list[str]:
    """Return the names that `load` accepts in place of a run folder."""
    return sorted(path.parent.name for path in pretrained_folder().glob("*/config.yaml"))


def previous(folder: Path) -> Path:
    """Where a checkpoint waits while its successor takes its place."""
    return folder.with_name(folder.name + ".previous")
