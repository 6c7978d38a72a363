"""An exported file answers as the model does, at sizes it was not traced at; one that does not is never written."""

import json
import re
import sys

import pytest
import torch

import flare.export as exporting
from flare.cli import main
from flare.data.normalization import Affine
from flare.export import TOLERANCE, export
from flare.models import MODELS
from flare.surrogate import Surrogate
from flare.utils.errors import ConfigError, DataError
from tests.factory import ragged_schema, saved_run

SMALL = {
    "flare": {"channels": 8, "blocks": 1, "heads": 2, "latents": 4, "kv_depth": 1, "ffn_depth": 1},
    "transformer": {"channels": 8, "blocks": 1, "heads": 2},
    "perceiver": {"channels": 8, "blocks": 1, "heads": 2, "latents": 4},
    "transolver": {"channels": 8, "blocks": 1, "heads": 2, "slices": 4},
    "transolver++": {"channels": 8, "blocks": 1, "heads": 2, "slices": 4},
    "lno": {"channels": 8, "blocks": 1, "heads": 2, "modes": 4},
    "gnot": {"channels": 8, "blocks": 1, "heads": 2},
}


def surrogate(name="flare", **sizes):
    torch.manual_seed(3)
    made = Surrogate(
        {"name": name, **SMALL[name], **sizes},
        ragged_schema(),
        Affine([1.0, -2.0, 3.0, 40.0], [0.5, 2.0, 1e-3, 7.0]),
        Affine([20.0, 101325.0, 0.0], [100.0, 50.0, 1e-4]),
    )
    with torch.no_grad():  # small initial weights would hide what goes wrong
        for parameter in made.network.parameters():
            parameter.mul_(3).add_(0.05 * torch.randn_like(parameter))
    return made.eval()


def inputs(model, batch, points):
    return model.input_norm.decode(torch.randn(batch, points, model.schema.in_dim))


def close(answer, truth, model):
    """To 1e-5 of a channel's range, as far as float32 can hold the channel at all."""
    spread = (truth - model.target_norm.shift).abs().reshape(-1, truth.shape[-1]).amax(0)
    return bool(((answer - truth).abs() <= TOLERANCE * spread + 2.5e-7 * truth.abs()).all())


def test_a_torch_file_takes_any_batch_and_any_number_of_points(tmp_path):
    model = surrogate()
    done = export(model, tmp_path / "m.pt2", trials=2)
    assert max(done.error, done.rounding) <= TOLERANCE
    run = torch.export.load(tmp_path / "m.pt2").module()
    for size in ((1, 1), (4, 701), (7, 3)):
        x = inputs(model, *size)
        assert close(run(x, None), model(x), model)


def test_an_onnx_file_runs_without_flare_and_knows_its_channels_and_units(tmp_path):
    ort = pytest.importorskip("onnxruntime")
    model = surrogate()
    export(model, tmp_path / "m.onnx", format="onnx", mask=True, trials=2)
    session = ort.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    x, mask = inputs(model, 3, 523), torch.rand(3, 523) < 0.7
    (answer,) = session.run(["outputs"], {"inputs": x.numpy(), "mask": mask.numpy()})
    assert close(torch.from_numpy(answer)[mask], model(x, mask)[mask], model)
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["flare.inputs"])[3] == {"name": "speed", "unit": "m/s"}
    assert [c["name"] for c in json.loads(facts["flare.outputs"])] == ["force.x", "force.y", "heat"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx"]  # the weights are inside


@pytest.mark.slow
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("format", ["torch", "onnx"])
@pytest.mark.parametrize("name", MODELS)
def test_every_model_can_be_exported(name, format, mask, tmp_path):
    done = export(surrogate(name), tmp_path / f"m{exporting.SUFFIX[format]}", mask=mask)
    assert done.error <= max(TOLERANCE, 2 * done.rounding)
    assert done.rounding < 1e-4
    assert len({points for _, points in done.sizes}) > 4


def test_a_model_of_a_grid_keeps_its_points_and_frees_its_batch(tmp_path):
    model = surrogate("transolver", grid=[3, 4])
    done = export(model, tmp_path / "m.pt2", trials=1)
    assert {points for _, points in done.sizes} == {12}


def test_a_file_that_answers_otherwise_is_not_written(tmp_path, monkeypatch):
    model = surrogate()
    write, opened = exporting._ways("torch")
    wrong = lambda path: (lambda run: lambda x, mask: run(x, mask) + 1e-3)(opened(path))  # noqa: E731
    monkeypatch.setattr(exporting, "_ways", lambda format: (write, wrong))
    with pytest.raises(DataError, match=r"was not written: it differs from the model by \d"):
        export(model, tmp_path / "m.pt2", trials=0)
    assert not list(tmp_path.iterdir())


def test_weights_that_are_no_numbers_are_not_exported(tmp_path):
    model = surrogate()
    model.network.lift.layers[0].weight.data[0, 0] = torch.nan
    with pytest.raises(DataError, match="was not written"):
        export(model, tmp_path / "m.pt2", trials=0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "how", "message"),
    [
        ("m.bin", {}, r"should end in \.pt2 \(torch\) or \.onnx"),
        ("m.onnx", {"format": "torch"}, r"ends in \.pt2"),
        ("m.pt2", {"format": "tflite"}, "unknown format"),
    ],
)
def test_a_name_that_says_no_format_is_refused(name, how, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        export(surrogate(), tmp_path / name, **how)


def test_the_verb_writes_beside_the_run_and_never_over_a_file(tmp_path, capsys):
    words = ["export", str(saved_run(surrogate(), tmp_path / "part")), "--format", "torch", "--trials", "1"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert re.search(r"  force\.y: differs by at most \S+ N; float32 has steps of 7\.8e-03 N there\n", said)
    assert "0.0e+00" not in said
    before = (tmp_path / "part" / "part.pt2").read_bytes()
    assert main(words) == 2
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "part" / "part.pt2").read_bytes() == before


def test_a_missing_package_is_named_with_the_extra_that_has_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"needs the package onnxruntime; .*'flare-engine\[export\]'"):
        export(surrogate(), tmp_path / "m.onnx")
