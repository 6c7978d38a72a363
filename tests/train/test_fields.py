"""The mean field that every model must beat is the better of the two means there are."""

import numpy as np
import pytest

from flare.data.sample import Field, Sample, Schema
from flare.data.writer import DatasetWriter
from flare.train.fields import mean_field_errors


def points_on_a_line(path, order, samples=6):
    """u = 1 + x + a little that differs between samples, at the same ten places, in an order of their own."""
    fields = {
        "points": Field(role="points", components=("x",)),
        "u": Field(role="target", components=("u",)),
    }
    writer = DatasetWriter(path, Schema(name="line", fields=fields), {"kind": "user"})
    for index in range(samples):
        x = order(np.random.default_rng(index), np.linspace(0, 1, 10))[:, None]
        writer.append(Sample({"points": x, "u": 1 + x + 0.01 * index}))
    return writer.finish({"train": [(0, samples - 2)], "test": [(samples - 2, samples)]})


@pytest.mark.parametrize(
    ("order", "kind"),
    [(lambda rng, x: x, "point by point"), (lambda rng, x: rng.permutation(x), "one value")],
    ids=["points correspond", "points are in no order"],
)
def test_the_mean_is_taken_point_by_point_only_where_points_correspond(tmp_path, order, kind):
    dataset = points_on_a_line(tmp_path / "d", order)
    train, test = dataset.split("train"), dataset.split("test")
    errors, found = mean_field_errors(dataset, train, test)
    assert found == kind
    targets = [np.asarray(dataset[int(i)].values["u"], np.float64) for i in range(len(dataset))]
    mean = np.mean(targets[:4], axis=0) if kind == "point by point" else np.mean(targets[:4])
    want = [np.linalg.norm(mean - u) / np.linalg.norm(u) for u in targets[4:]]
    np.testing.assert_allclose(errors[:, 0], want, rtol=1e-6)
