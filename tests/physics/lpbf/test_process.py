"""Machines and materials: presets, files, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from flare.physics.lpbf import Machine, Material, Process, load_process, process_names, process_preset
from flare.utils.errors import ConfigError


def test_the_default_process_is_the_titanium_preset_without_its_curves():
    preset = process_preset("ti64-am250")
    assert preset.machine == Machine()
    for name in ("density", "conductivity", "specific_heat", "young", "poisson", "expansion", "inherent_strain"):
        assert getattr(preset.material, name) == getattr(Material(), name)
    assert preset.voxel_height == pytest.approx(0.6)
    assert preset.group_height == pytest.approx(2.4)


def test_the_inconel_preset_has_groups_of_the_public_example():
    preset = process_preset("in625")
    assert preset.voxel_height == pytest.approx(0.8)
    assert preset.group_height == pytest.approx(3.2)


@pytest.mark.parametrize("name", process_names())
def test_every_preset_has_the_curves_that_the_refined_mode_needs(name):
    material = process_preset(name).material
    assert material.yield_curve
    assert material.young_curve
    room = np.array([25.0])
    assert material.at("young", room)[0] == pytest.approx(material.young, rel=0.02)
    assert material.at("conductivity", room)[0] == pytest.approx(material.conductivity, rel=0.2)
    hot = np.array([400.0])
    assert material.at("yield", hot)[0] < material.at("yield", room)[0]


def test_curves_are_linear_between_points_and_constant_outside():
    material = Material(young_curve=((0.0, 100.0), (100.0, 50.0)))
    assert material.at("young", np.array([-50.0, 0.0, 25.0, 100.0, 900.0])) == pytest.approx([100, 100, 87.5, 50, 50])


def test_a_file_changes_what_it_names(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("machine: {power: 4e2}\nmaterial: {expansion: 1e-6, yield_curve: [[20, 500], [800, 100]]}\n")
    process = load_process(path)
    assert process.machine.power == 400.0
    assert process.material.expansion == 1e-6
    assert process.material.yield_curve == ((20.0, 500.0), (800.0, 100.0))
    assert process.machine.speed == Machine().speed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("machine: {pover: 3}", "machine.pover is unknown; did you mean 'power'"),
        ("machine: {speed: 0}", "machine.speed=0 must be at least 1 and at most 50000"),
        ("machine: {speed: 0.8}", "machine.speed=0.8 must be at least 1"),
        ("machine: {power: 200000}", "machine.power=200000 must be at least 0 and at most 20000"),
        ("machine: {layer: 40}", "machine.layer=40 must be above 0 and at most 5"),
        ("machine: {ambient: -250}", "machine.ambient=-250 must be at least -100"),
        ("machine: {build_volume: [250, 250]}", "three finite numbers"),
        ("machine: {build_volume: 250}", "a list of three numbers"),
        ("machine: {build_volume: [250, 0, 250]}", "machine.build_volume.y=0 must be above 0"),
        (
            "machine: {plate_temperature: 800}",
            "plate_temperature=800 must be below material.relaxation_temperature=800",
        ),
        ("machine: {power: [1, 2]}", "a number"),
        ("machine: {power: strong}", "machine.power='strong' is not what belongs there: a number"),
        ("machine: {absorptivity: 1.5}", "at least 0 and at most 1"),
        ("machine: {plate_temperature: 10}", "at least 25"),
        ("machine: 7", "must hold names and values"),
        ("material: {young: .nan}", "finite"),
        ("material: {poisson: 0.5}", "below 0.5"),
        ("material: {inherent_strain: [0.1, 0.2]}", "three finite numbers"),
        ("material: {inherent_strain: [-0.9, -0.9, 0]}", "inherent_strain.x=-0.9 must be above -0.1 and below 0.1"),
        (
            "material: {inherent_strain: -0.007}",
            r"inherent_strain=-0.007 is not .*three numbers, along x, y and z, such as \[-0.009, -0.009, 0\]",
        ),
        ("material: {inherent-stain: [0, 0, 0]}", "material.inherent_stain is unknown; did you mean 'inherent_strain'"),
        ("material: {relaxation_temperature: -8}", "relaxation_temperature=-8 must be above 0"),
        ("material: {solidus: -1}", "material.solidus=-1 must be above 0"),
        ("material: {yield_curve: [[20, 5], [10, 4]]}", "temperatures must ascend"),
        ("material: {yield_curve: [1, 2]}", "pairs"),
        ("layers_per_voxel: 1.5", "a whole number"),
        ("voxels_per_group: 0", "at least 1"),
        ("incompatible_modes: 3", "true or false"),
        ("material: {relaxation_temperature: 20}", "relaxation_temperature=20 must be above 25"),
        ("a: [", "not YAML"),
    ],
)
def test_files_that_make_no_sense_are_refused(tmp_path, text, message):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_process(path)
    assert str(path) in str(caught.value)


def test_names_may_be_spelt_with_hyphens(tmp_path):
    (tmp_path / "mine.yaml").write_text("material: {inherent-strain: [-0.007, -0.007, 0]}\nlayers-per-voxel: 20\n")
    process = load_process(tmp_path / "mine.yaml")
    assert process.material.inherent_strain == (-0.007, -0.007, 0.0)
    assert process.layers_per_voxel == 20


def test_unknown_names_are_told():
    with pytest.raises(ConfigError, match="did you mean 'in625'"):
        process_preset("in652")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_process("/nowhere/at/all.yaml")


def test_a_file_in_another_encoding_is_refused(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_bytes("material: {name: Stahl für Öfen}\n".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"mine.yaml: not UTF-8 text \(byte 0xfc at 24\); save it as UTF-8"):
        load_process(path)
    path.write_text("material: {name: Stahl für Öfen}\n", encoding="utf-8")
    assert load_process(path).material.name == "Stahl für Öfen"


def test_a_hotter_plate_is_a_new_process():
    process = Process()
    assert process.with_plate_temperature(300.0).machine.plate_temperature == 300.0
    assert process.machine.plate_temperature is None
