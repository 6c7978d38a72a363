"""Mirrors and rotations: points and vectors move together, each epoch is different, unknown fields are refused."""

import numpy as np
import pytest
import torch

from flare.data.augmentation import Symmetry, transform_sample
from flare.data.batching import BatchPlan, training_loader
from flare.data.dataset import Dataset
from flare.data.sample import Field, Sample, Schema, input_array, target_array
from flare.data.writer import DatasetWriter
from flare.utils.errors import DataError


def vectors(path) -> Dataset:
    fields = {
        "points": Field(role="points", components=("x", "y")),
        "force": Field(role="feature", components=("x", "y")),
        "heat": Field(role="target", components=("q",)),
        "motion": Field(role="target", components=("x", "y")),
    }
    writer = DatasetWriter(path, Schema(name="vectors", fields=fields), {"kind": "user"})
    rng = np.random.default_rng(0)
    for _ in range(4):
        writer.append(Sample({name: rng.normal(size=(6, len(f.components))) for name, f in fields.items()}))
    return writer.finish({"train": [(0, 4)]})


def test_a_mirror_moves_points_and_vectors_together_in_every_epoch(tmp_path):
    dataset, seen = vectors(tmp_path / "d"), set()
    plan = BatchPlan(np.arange(4), 4, seed=1)
    for epoch in range(12):
        plan.begin(epoch)
        (batch,) = training_loader(dataset, plan, symmetry=Symmetry(mirror=["x"]))
        for row, index in enumerate(batch.indices):
            inputs, targets = (array(dataset.schema, dataset[index]) for array in (input_array, target_array))
            sign = np.sign(float(batch.inputs[row, 0, 0]) * inputs[0, 0])
            np.testing.assert_array_equal(batch.inputs[row], inputs * [sign, 1, sign, 1])
            np.testing.assert_array_equal(batch.targets[row], targets * [1, sign, 1])
            seen.add((index, sign))
    assert len(seen) == 8, "every sample both ways"


def test_every_sample_and_epoch_has_its_own_reproducible_angle(tmp_path):
    dataset, angles = vectors(tmp_path / "d"), set()
    plan, symmetry = BatchPlan(np.arange(4), 4, seed=1), Symmetry(turn=["x", "y"])
    for epoch in range(3):
        plan.begin(epoch)
        (batch,) = training_loader(dataset, plan, symmetry=symmetry)
        plan.begin(epoch)
        (again,) = training_loader(dataset, plan, symmetry=symmetry)
        assert torch.equal(batch.inputs, again.inputs)
        for row, index in enumerate(batch.indices):
            inputs, targets = (array(dataset.schema, dataset[index]) for array in (input_array, target_array))
            before, after = inputs[:, 0] + 1j * inputs[:, 1], batch.inputs[row].numpy()
            turn = (after[0, 0] + 1j * after[0, 1]) / before[0]  # exp(i angle)
            assert abs(turn) == pytest.approx(1, rel=1e-6)
            force, motion = inputs[:, 2] + 1j * inputs[:, 3], targets[:, 1] + 1j * targets[:, 2]
            np.testing.assert_allclose(after[:, 2] + 1j * after[:, 3], force * turn, atol=1e-6)
            moved_targets = batch.targets[row].numpy()
            np.testing.assert_array_equal(moved_targets[:, 0], targets[:, 0])
            np.testing.assert_allclose(moved_targets[:, 1] + 1j * moved_targets[:, 2], motion * turn, atol=1e-6)
            angles.add(round(float(np.angle(turn)), 3))
    assert len(angles) == 12


def test_a_diagonal_mirror_exchanges_the_axes_and_three_mirrors_give_all_eight_images_of_a_square(tmp_path):
    dataset = vectors(tmp_path / "d")
    schema, sample = dataset.schema, dataset[0]
    inputs, targets = input_array(schema, sample), target_array(schema, sample)
    swapped = transform_sample(schema, sample, ["x=y"])
    np.testing.assert_array_equal(input_array(schema, swapped), inputs[:, [1, 0, 3, 2]])
    np.testing.assert_array_equal(target_array(schema, swapped), targets[:, [0, 2, 1]])
    quarter = transform_sample(schema, sample, ["x", "x=y"])  # two mirrors are a quarter turn: (x, y) -> (y, -x)
    np.testing.assert_array_equal(input_array(schema, quarter), inputs[:, [1, 0, 3, 2]] * [1, -1, 1, -1])
    same = transform_sample(schema, sample, turn=["y", "x"], angle=np.pi / 2)
    np.testing.assert_allclose(input_array(schema, same), input_array(schema, quarter), atol=1e-6)
    choices = [[m for m, chosen in zip(("x", "y", "x=y"), bits, strict=True) if chosen] for bits in np.ndindex(2, 2, 2)]
    assert len({transform_sample(schema, sample, mirrors).values["points"].tobytes() for mirrors in choices}) == 8


def test_a_vector_may_have_fewer_axes_than_the_points():
    fields = {
        "points": Field(role="points", components=("x", "y", "z")),
        "drift": Field(role="target", components=("y", "x")),
        "tilt": Field(role="target", components=("x", "z")),
    }
    flat = Schema(name="flat", fields={name: fields[name] for name in ("points", "drift")})
    rng = np.random.default_rng(0)
    sample = Sample({name: rng.normal(size=(5, len(f.components))).astype(np.float32) for name, f in fields.items()})
    Symmetry(mirror=["x", "z", "x=y"], turn=["x", "y"]).check(flat)
    drift = sample.values["drift"]
    np.testing.assert_array_equal(transform_sample(flat, sample, ["x", "z"]).values["drift"], drift * [1, -1])
    np.testing.assert_array_equal(transform_sample(flat, sample, ["x=y"]).values["drift"], drift[:, ::-1])
    turned = transform_sample(flat, sample, turn=["x", "y"], angle=np.pi / 2).values["drift"]  # x -> y, y -> -x
    np.testing.assert_allclose(turned, drift[:, ::-1] * [1, -1], atol=1e-6)
    tilted = Schema(name="tilted", fields={name: fields[name] for name in ("points", "tilt")})
    Symmetry(mirror=["x", "y"]).check(tilted)
    for symmetry in (Symmetry(mirror=["x=y"]), Symmetry(turn=["y", "z"])):
        with pytest.raises(DataError, match=r"'tilt'.*x, z"):
            symmetry.check(tilted)


def test_unknown_axes_and_components_are_refused(tmp_path):
    schema = vectors(tmp_path / "d").schema
    for wrong in ("z", "x=z", "x=x", "x=y=x"):
        with pytest.raises(DataError, match=f"data.mirror.*'{wrong}'.*x, y"):
            Symmetry(mirror=[wrong]).check(schema)
    for axes in (["x"], ["x", "z"]):
        with pytest.raises(DataError, match=r"data\.turn.*x, y"):
            Symmetry(turn=axes).check(schema)
    odd = {**schema.fields, "heat": Field(role="target", components=("low", "high"))}
    for symmetry in (Symmetry(mirror=["x"]), Symmetry(turn=["x", "y"])):
        with pytest.raises(DataError, match=r"'heat'.*low, high"):
            symmetry.check(Schema(name="odd", fields=odd))
    Symmetry().check(Schema(name="odd", fields=odd))
