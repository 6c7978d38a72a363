"""Exported files agree with the model at sizes that were not traced, or are not written."""

import json
import re
import sys

import pytest
import torch

import flare.inference.export as exporting
from flare.cli import main
from flare.data.normalization import Affine
from flare.inference.export import TOLERANCE, export
from flare.inference.surrogate import Surrogate
from flare.models import MODELS
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
    """Return whether results agree to 1e-5 of the range of a channel, up to the precision of float32."""
    spread = (truth - model.target_norm.shift).abs().reshape(-1, truth.shape[-1]).amax(0)
    return bool(((answer - truth).abs() <= TOLERANCE * spread + 2.5e-7 * truth.abs()).all())


def test_a_torch_file_accepts_any_batch_and_number_of_points(tmp_path):
    model = surrogate()
    done = export(model, tmp_path / "m.pt2", trials=1)
    assert done.error <= TOLERANCE
    run = torch.export.load(tmp_path / "m.pt2").module()
    for size in ((1, 1), (4, 701), (7, 3)):
        x = inputs(model, *size)
        assert close(run(x, None), model(x), model)


def test_an_onnx_file_has_the_names_and_units_of_its_channels(tmp_path):
    ort = pytest.importorskip("onnxruntime")
    model = surrogate()
    export(model, tmp_path / "m.onnx", mask=True, trials=0)
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
@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
@pytest.mark.parametrize("name", MODELS)
def test_every_model_can_be_exported(name, suffix, mask, tmp_path):
    done = export(surrogate(name), tmp_path / f"m{suffix}", mask=mask)
    assert done.error < 2e-4
    assert len({points for _, points in done.sizes}) > 4


def test_a_model_on_a_grid_has_a_fixed_number_of_points(tmp_path):
    model = surrogate("transolver", grid=[3, 4])
    done = export(model, tmp_path / "m.pt2", trials=0)
    assert {points for _, points in done.sizes} == {12}


@pytest.mark.parametrize("wrong", ["file", "weights"])
def test_a_file_that_disagrees_is_not_written(tmp_path, monkeypatch, wrong):
    model = surrogate()
    if wrong == "weights":
        model.network.lift.layers[0].weight.data[0, 0] = torch.nan
    else:
        opened = exporting._open_torch

        def shifted(path):
            run = opened(path)
            return lambda x, mask: run(x, mask) + 1e-3

        monkeypatch.setattr(exporting, "_open_torch", shifted)
    with pytest.raises(DataError, match=r"m\.pt2"):
        export(model, tmp_path / "m.pt2", trials=0)
    assert not list(tmp_path.iterdir())


def test_an_unknown_suffix_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"m\.bin"):
        export(surrogate(), tmp_path / "m.bin")


def test_the_command_writes_into_the_run_folder_and_overwrites_nothing(tmp_path, capsys):
    words = ["export", str(saved_run(surrogate(), tmp_path / "part")), "--format", "torch", "--trials", "0"]
    assert main(words) == 0
    assert re.search(r"force\.y: .* N\n", capsys.readouterr().out)
    before = (tmp_path / "part" / "part.pt2").read_bytes()
    assert main(words) == 2
    assert "part.pt2" in capsys.readouterr().err
    assert (tmp_path / "part" / "part.pt2").read_bytes() == before


def test_a_missing_package_is_named_with_the_extra_that_has_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"onnxruntime.*flare-engine\[export\]"):
        export(surrogate(), tmp_path / "m.onnx")
