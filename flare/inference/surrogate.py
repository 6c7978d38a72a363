"""Surrogates: a network with its normalizers, field names and units. Inputs and outputs are physical values."""

# B batch, N points

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from flare.data.normalization import Affine
from flare.data.sample import INPUT_ROLES, Sample, Schema
from flare.inference.chunked import Chunk, as_fields, empty_outputs, predict_into
from flare.inference.encoding import Encoding, encode
from flare.models import MODELS, build_model
from flare.models.streaming import CHUNK, spans
from flare.utils.errors import CheckpointError, ConfigError, DataError, one_line, suggest_name

if TYPE_CHECKING:
    from flare.inference.mesh_inputs import Points, Values
    from flare.mesh import Mesh

VERSION = 1
"""Version of the files of a saved model."""
AnyModule = TypeVar("AnyModule", bound=nn.Module)
Inputs = Mapping[str, ArrayLike] | None
"""Field name -> values."""


class Learner(nn.Module):
    """A network with everything it needs to work on physical values: the module that is trained and saved."""

    network: nn.Module

    @property
    def about(self) -> dict[str, Any]:
        """Everything needed to build the module again, as JSON."""
        raise NotImplementedError


class Surrogate(Learner):
    """A neural surrogate of a simulation: predicts fields in physical units at the points of a sample.

    `flare.load` and `flare.train` return surrogates; they are rarely built by hand.

    Args:
        model: The network to build, `{"name": "flare", "channels": 64, ...}`.
        schema: Names, roles and units of the fields.
        input_norm: Normalizer of the input channels. None: identity, to be filled by a state dict.
        target_norm: Normalizer of the target channels, likewise.

    Example:
        >>> import flare
        >>> surrogate = flare.load("runs/mine")
        >>> inputs = {"features": {"thickness": [1.0, 1.2]}, "parameters": {"speed": 2.0}}
        >>> fields = surrogate.predict([[0.1, 0.2], [0.3, 0.4]], **inputs)
        >>> {name: values.shape for name, values in fields.items()}
        {'heat': (2,)}
        >>> surrogate.units["heat"]
        'W'
        >>> encoding = surrogate.encode([[0.1, 0.2], [0.3, 0.4]], **inputs)
        >>> encoding.query([[0.2, 0.3]], features={"thickness": [1.1]})["heat"].shape
        (1,)
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
        self.run: Path | None = None
        """Run folder that the weights come from."""
        sizes = {key: value for key, value in model.items() if key != "name"}
        self.network = build_model(model["name"], schema.in_dim, schema.out_dim, **sizes)
        self.input_norm = input_norm or Affine(np.zeros(schema.in_dim), np.ones(schema.in_dim))
        self.target_norm = target_norm or Affine(np.zeros(schema.out_dim), np.ones(schema.out_dim))

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """Predict a batch, [B, N, in_dim] -> [B, N, out_dim], physical values; `mask` [B, N] is True at real points."""
        encoded = self.network(self.input_norm.encode(inputs), mask)
        # Mixed precision ends here: physical values keep the digits of the normalizer.
        return self.target_norm.decode(encoded.to(self.target_norm.scale.dtype))

    @property
    def about(self) -> dict[str, Any]:
        """Everything needed to build the surrogate again, as JSON."""
        return {"model": self.model, "schema": self.schema.to_json()}

    def predict(
        self,
        points: ArrayLike,
        *,
        features: Inputs = None,
        parameters: Inputs = None,
        chunk: Chunk = "auto",
        scratch: str | os.PathLike[str] | None = None,
    ) -> dict[str, np.ndarray]:
        """Predict the target fields at the points of one sample.

        Args:
            points: Coordinates, shape (N, dimensions).
            features: Features of the dataset by name, (N,) or (N, channels); a number is the same at every point.
            parameters: Parameters of the dataset by name, a number or (channels,).
            chunk: Points per chunk; the result is the same, the memory bounded. `auto`: chunks if there are many
                points. `whole`: all points at once.
            scratch: Folder for intermediate values that do not fit into memory; None: the system's.

        Returns:
            Target name -> (N,), or (N, channels) for a field of several components, in the units of `units`.

        Raises:
            DataError: A field is missing, unknown, of the wrong shape or not finite, or the prediction is not finite.
        """
        sample = self.sample(points, self._by_name(features, parameters))
        outputs = empty_outputs(self, len(sample.values[self.schema.points]))
        predict_into(self, sample, outputs, chunk=chunk, scratch=scratch)
        return as_fields(outputs)

    def predict_sample(
        self, sample: Sample, *, chunk: Chunk = "auto", scratch: str | os.PathLike[str] | None = None
    ) -> dict[str, np.ndarray]:
        """Predict the target fields of a sample of a dataset.

        Args:
            sample: A sample with the inputs of the model; its targets are ignored.
            chunk: As for `predict`.
            scratch: As for `predict`.

        Returns:
            Target name -> values, as `predict` returns them.
        """
        features, parameters = ({n: sample.values[n] for n in self.schema.named(r)} for r in ("feature", "parameter"))
        points = sample.values[self.schema.points]
        return self.predict(points, features=features, parameters=parameters, chunk=chunk, scratch=scratch)

    def predict_mesh(
        self,
        mesh: Mesh | str | os.PathLike[str] | Any,
        *,
        features: Values | None = None,
        parameters: Values | None = None,
        points: Points = "auto",
        spacing: float | None = None,
    ) -> Mesh:
        """Predict the target fields on a mesh.

        Args:
            mesh: A `flare.Mesh`, a pyvista dataset, or the path of a mesh file.
            features: Features that the mesh does not have, by name.
            parameters: Parameters that the mesh does not have, by name.
            points: Points of a surface file without fields (STL, PLY, OBJ): its `vertices`, points on the `surface`,
                `voxels` that fill it, or `auto` as in the training data.
            spacing: Distance between those points; None uses that of the training data.

        Returns:
            The mesh with the predicted fields, and with error bars if the run is calibrated.

        Raises:
            DataError: The mesh cannot be read, or an input is missing, given twice, in another unit or not finite.
            ConfigError: An argument does not apply to the mesh or to the model.
        """
        from flare.inference.calibration.calibrate import load_calibration
        from flare.inference.prediction import predict
        from flare.mesh import Mesh

        if not isinstance(mesh, Mesh | str | os.PathLike):
            mesh = Mesh.from_pyvista(mesh)
        calibration = load_calibration(self.run, self) if self.run else None
        given: dict[str, Any] = {"features": features, "parameters": parameters, "points": points, "spacing": spacing}
        return predict(self, mesh, **given, calibration=calibration).mesh

    def encode(
        self,
        points: ArrayLike,
        *,
        features: Inputs = None,
        parameters: Inputs = None,
        chunk: Chunk = "auto",
        scratch: str | os.PathLike[str] | None = None,
    ) -> Encoding:
        """Encode one sample as the latents of a FLARE model, which can be queried at any points.

        Args:
            points: Coordinates, shape (N, dimensions).
            features: Features of the dataset by name, as for `predict`.
            parameters: Parameters of the dataset by name, a number or (channels,).
            chunk: As for `predict`.
            scratch: As for `predict`.

        Returns:
            The encoding; its method `query` predicts at other points.

        Raises:
            ConfigError: The model has no latents.
            DataError: A field is missing, unknown, of the wrong shape or not finite.
        """
        sample = self.sample(points, self._by_name(features, parameters))
        return encode(self, sample, chunk=chunk, scratch=scratch)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.input_norm.shift.device

    @property
    def units(self) -> dict[str, str]:
        """Field name -> unit, for inputs and targets."""
        return {name: field.unit for name, field in self.schema.fields.items()}

    def check_fields(self, schema: Schema, where: str | os.PathLike[str]) -> None:
        """Raise a `DataError` that names `where` if a schema has other fields or channels than this model."""
        mine, theirs = _meaning(self.schema), _meaning(schema)
        if mine != theirs:
            raise DataError(f"{where} does not fit this model: it has {theirs}; the model was trained on {mine}")

    def _by_name(self, features: Inputs, parameters: Inputs) -> dict[str, ArrayLike]:
        """Join features and parameters; refuse a field that is given as the wrong argument."""
        arguments = {"points": "points", "feature": "features", "parameter": "parameters"}
        for role, given in (("feature", features), ("parameter", parameters)):
            for name in given or {}:
                actual = self.schema.fields[name].role if name in self.schema.fields else role
                if actual != role and actual in arguments:
                    raise DataError(f"{name!r} was given in {arguments[role]}; it belongs in {arguments[actual]}")
        return {**(features or {}), **(parameters or {})}

    def sample(self, points: ArrayLike, fields: Mapping[str, ArrayLike]) -> Sample:
        """Check the inputs of one sample.

        Args:
            points: Coordinates, shape (N, dimensions).
            fields: Features and parameters by name. Arrays may be memory-mapped.

        Raises:
            DataError: A field is missing, unknown, of the wrong shape, or not finite.
        """
        wanted = self.schema.named(*INPUT_ROLES)
        given: dict[str, ArrayLike] = {self.schema.points: points, **fields}
        for name in given:
            if name not in wanted:
                raise DataError(f"this model has no input {name!r}; {suggest_name(name, wanted)}")
        for name in wanted:
            if name not in given:
                role = self.schema.fields[name].role
                raise DataError(f"the {role} {name!r} is missing; the model needs {', '.join(wanted)}")
        count = len(np.atleast_2d(points))
        with np.errstate(over="ignore"):  # values too large for float32 are refused as inf
            return Sample({name: self._shaped(name, values, count) for name, values in given.items()})

    def _shaped(self, name: str, values: ArrayLike, count: int) -> np.ndarray:
        """Return a field as (count, channels), or (channels,) for a parameter."""
        field = self.schema.fields[name]
        width = len(field.components)
        array = np.asarray(values)
        if array.dtype.kind not in "fiub":
            raise DataError(f"{name!r} holds {array.dtype}; real numbers are expected")
        if not isinstance(values, np.memmap):  # which stays on disk
            array = array.astype(np.float32, copy=False)
        if field.role == "feature" and array.ndim == 0:
            array = np.full(count, array)
        shape = (width,) if field.role == "parameter" else (count, width)
        if array.shape != shape and not (width == 1 and array.shape == shape[:-1]):
            wanted = str(shape) if name != self.schema.points else f"(N, {width})"
            raise DataError(f"{name!r} has shape {array.shape}, expected {wanted}: {', '.join(field.components)}")
        if not array.size:
            raise DataError(f"{name!r} is empty: there are no points")
        array = array.reshape(shape)
        _refuse_non_finite(name, array)
        return array


def _refuse_non_finite(name: str, array: np.ndarray) -> None:
    """Check values as float32, chunk by chunk, since an array on disk may not fit into memory."""
    count, first = 0, list[int]()
    for start, stop in spans(len(array), CHUNK):
        bad = np.argwhere(~np.isfinite(array[start:stop].astype(np.float32, copy=False)))
        if len(bad) and not count:
            first = [start + int(bad[0][0]), *bad[0][1:].tolist()]
        count += len(bad)
    if count:
        raise DataError(f"{name!r} has NaN or infinity at {count:,} places (first: {first})")


def _meaning(schema: Schema) -> str:
    """Return names, roles, channels and units of all fields in order."""
    fields = ((name, schema.fields[name]) for name in schema.named(*INPUT_ROLES, "target"))
    return "; ".join(f"{name} ({f.role}: {', '.join(f.components)}) in {f.unit}" for name, f in fields)


def save_model(state: Mapping[str, Tensor], about: Mapping[str, Any], folder: Path) -> None:
    """Write weights and normalizers (safetensors) and their description (JSON) into an existing folder."""
    save_file({k: v.contiguous() for k, v in state.items()}, folder / "model.safetensors")
    (folder / "model.json").write_text(json.dumps({"version": VERSION, **about}, indent=1) + "\n", encoding="utf-8")


def load_surrogate(folder: Path, *, weights: str = "model.safetensors") -> Surrogate:
    """Load what `save_model` wrote. Nothing is unpickled."""
    try:
        about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        if about["version"] != VERSION:
            raise CheckpointError(
                f"{folder}: format version {about['version']}, this flare reads {VERSION}; update flare"
            )
        if about.get("holds", "fields") != "fields":
            raise CheckpointError(
                f"{folder} holds a classifier of {about['holds']}, not a surrogate of fields; load it with "
                f"flare.sequence.load_classifier, or evaluate it with:  flare evaluate"
            )
        if (name := about["model"]["name"]) not in MODELS:
            raise CheckpointError(
                f"{folder}: unknown model {name!r}; {suggest_name(str(name), MODELS)}. If it is your own, import the "
                f"module that registers it, or install that as a plugin"
            )
        surrogate = Surrogate(about["model"], Schema.from_json(about["schema"]))
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no model.json") from None
    except (json.JSONDecodeError, KeyError, TypeError, ConfigError, DataError) as error:
        raise CheckpointError(f"{folder / 'model.json'} is damaged, or of another version: {error}") from None
    load_weights(surrogate, folder / weights)
    return surrogate


def load_weights(
    surrogate: nn.Module, path: Path, fill: Callable[[nn.Module, dict[str, Tensor]], object] = nn.Module.load_state_dict
) -> None:
    """Fill a module from a safetensors file.

    Raises:
        CheckpointError: The file is missing, damaged, or its tensors do not fit the module.
    """
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
    """Read all tensors of a safetensors file."""
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
        checkpoint: `last`, as the paper reports, or `best` on the watched split.
        ema: Load the running average of the weights, if the run has one.
        device: `cpu`, `cuda`, ..., or `auto` for a GPU if there is one.

    Returns:
        The surrogate in evaluation mode.

    Raises:
        CheckpointError: The run or checkpoint is missing, damaged, not a surrogate of fields, or of a model that is not
            registered.
        ConfigError: The device cannot be used.

    Example:
        >>> import flare
        >>> surrogate = flare.load("runs/mine")
        >>> surrogate.schema.named("target")
        ['heat']
    """
    folder = find_checkpoint(Path(run), checkpoint)
    if ema and not (folder / "ema.safetensors").exists():
        raise CheckpointError(f"{folder} has no averaged weights; train with optim.ema, such as 0.999")
    surrogate = load_surrogate(folder, weights="ema.safetensors" if ema else "model.safetensors")
    surrogate.run = folder.parents[1]
    return move_to_device(surrogate, device)


def move_to_device(model: AnyModule, device: str) -> AnyModule:
    """Move a module to a device, `auto` for a GPU if there is one, and set it to evaluation mode."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return model.to(device).eval()
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ConfigError(f"device={device!r} cannot be used here: {one_line(error)}") from None


def find_checkpoint(run: Path, name: str = "last") -> Path:
    """Return the folder of a checkpoint; the previous one if a kill interrupted its replacement."""
    if not run.exists() and str(run) in pretrained_names():
        run = pretrained_folder() / run
    folder = run / "checkpoints" / name
    if (run / "dataset.json").exists():
        raise CheckpointError(f"{run} is a dataset, not a run folder")
    if not folder.exists() and previous(folder).exists():
        return previous(folder)
    if not folder.exists():
        what = f"has no checkpoint {name!r} yet" if run.is_dir() else "does not exist"
        raise CheckpointError(f"run {run} {what}; train one with flare.train(DATASET, out=...) or `flare train`")
    return folder


def pretrained_folder() -> Path:
    """Return the folder of the trained models: inside an installed package, beside it in a checkout."""
    package = Path(__file__).parents[1]
    return package / "pretrained" if (package / "pretrained").is_dir() else package.parent / "pretrained"


def pretrained_names() -> list[str]:
    """Return the names that `load` accepts instead of a run folder."""
    return sorted(path.parent.name for path in pretrained_folder().glob("*/config.yaml"))


def previous(folder: Path) -> Path:
    """Return the name of a checkpoint folder while a new one replaces it."""
    return folder.with_name(folder.name + ".previous")
