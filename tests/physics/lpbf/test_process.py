"""Machines and materials: presets, files, and errors."""

from __future__ import annotations

import numpy as np
import pytest

from flare.physics.lpbf import Machine, Material, load_process, process_names, process_preset
from flare.physics.lpbf.process import find_process
from flare.utils.errors import ConfigError


def test_the_default_process_is_the_titanium_preset_without_its_curves():
    preset = process_preset("ti64-am250")
    assert preset.machine == Machine()
    for name in ("density", "conductivity", "specific_heat", "young", "poisson", "expansion", "inherent_strain"):
        assert getattr(preset.material, name) == getattr(Material(), name)
    assert preset.voxel_height == pytest.approx(0.6)
    assert preset.group_height == pytest.approx(2.4)


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


def test_a_file_overrides_the_defaults_and_names_may_have_hyphens(tmp_path):
    path = tmp_path / "mine.yaml"
    text = "machine: {power: 4e2}\nlayers-per-voxel: 20\n"
    text += "material: {expansion: 1e-6, inherent-strain: [-0.007, 0, 0], yield_curve: [[20, 500], [800, 100]]}\n"
    path.write_text(text)
    process = load_process(path)
    assert (process.machine.power, process.layers_per_voxel) == (400.0, 20)
    assert process.material.expansion == 1e-6
    assert process.material.inherent_strain == (-0.007, 0.0, 0.0)
    assert process.material.yield_curve == ((20.0, 500.0), (800.0, 100.0))
    assert process.machine.speed == Machine().speed


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("machine: {pover: 3}", "'power'"),
        ("machine: {speed: 0.8}", "speed=0.8"),
        ("machine: {power: [1, 2]}", "power="),
        ("machine: {power: strong}", "power="),
        ("machine: {build_volume: [250, 0, 250]}", "build_volume="),
        ("machine: {plate_temperature: 10}", "plate_temperature=10"),
        ("machine: {plate_temperature: 800}", "relaxation_temperature=800"),
        ("machine: 7", "7"),
        ("material: {young: .nan}", "young=nan"),
        ("material: {poisson: 0.5}", "poisson=0.5"),
        ("material: {inherent_strain: [0.1, 0.2]}", "inherent_strain="),
        ("material: {inherent_strain: [-0.9, -0.9, 0]}", "inherent_strain="),
        ("material: {inherent-stain: [0, 0, 0]}", "'inherent_strain'"),
        ("material: {yield_curve: [[20, 5], [10, 4]]}", "yield_curve"),
        ("material: {yield_curve: [1, 2]}", "yield_curve"),
        ("layers_per_voxel: 1.5", "layers_per_voxel=1.5"),
        ("incompatible_modes: 3", "incompatible_modes=3"),
        ("a: [", "bad.yaml"),
        ("material: {name: Stahl für Öfen}", " 0xfc"),
    ],
)
def test_invalid_files_raise_with_path_and_name(tmp_path, text, fact):
    path = tmp_path / "bad.yaml"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=fact) as caught:
        load_process(path)
    assert str(path) in str(caught.value)


def test_unknown_names_and_missing_files_raise():
    for call in (process_preset, find_process):
        with pytest.raises(ConfigError, match="'in625'"):
            call("in652")
    assert find_process("in625") == process_preset("in625")
    with pytest.raises(ConfigError, match=r"/nowhere/at/all.yaml"):
        load_process("/nowhere/at/all.yaml")
