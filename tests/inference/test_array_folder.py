"""Folders of arrays: inputs stay on disk, outputs appear once they are complete."""

import numpy as np
import pytest

from flare.data.sample import Field, Schema
from flare.inference.array_folder import map_inputs, mapped_outputs
from flare.mesh import read_mesh
from flare.utils.errors import DataError

SCHEMA = Schema(
    name="t",
    fields={
        "position": Field(role="points", components=("x", "y"), unit="mm"),
        "load": Field(role="parameter", components=("fx", "fz"), unit="N"),
        "stress": Field(role="target", components=("s",), unit="MPa"),
    },
)


def test_a_damaged_array_is_rejected_without_advice_to_unpickle_it(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("position", "load"):
        (folder / f"{name}.npy").write_text("no")
    np.savez(tmp_path / "x.npz", position=np.array([{}]), load=0)
    for read in (lambda: map_inputs(folder, SCHEMA), lambda: read_mesh(tmp_path / "x.npz")):
        with pytest.raises(DataError, match=r"position\.npy|x\.npz") as rejected:
            read()
        assert "pickle" not in str(rejected.value)


def test_a_field_of_one_component_is_one_column(tmp_path):
    with mapped_outputs(tmp_path / "out", SCHEMA, 2) as outputs:
        assert outputs["stress"].shape == (2, 1)
        outputs["stress"][:] = [[1.5], [2.5]]
        assert not (tmp_path / "out").exists()
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "stress.npy"), [1.5, 2.5])
