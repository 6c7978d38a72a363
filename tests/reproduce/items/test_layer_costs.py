"""Measured costs of one layer, and their extrapolation."""

import pytest

from flare.mixer import choose
from flare.models import count_parameters
from flare.reproduce.items.layer_costs import (
    make_layer,
    measure_layer,
    speedup_where_measured,
    summary,
    with_summary,
)


def lawful(name, points):
    """A machine on which softmax takes N² and the others N."""
    kind, _, size = name.partition(" ")
    seconds = 1e-8 * points**2 if kind == "softmax" else 1e-6 * points * (1 + int(size) / 1000)
    return {"layer": name, "points": points, "seconds": seconds, "peak_mb": 1e-3 * points}


def test_layers_have_the_papers_parameters():
    assert count_parameters(make_layer("flare 128")) == 198_016
    assert count_parameters(make_layer("softmax")) == 4 * 128 * 128 + 128
    maps, slices, tokens = 3 * (128 * 128 + 128), 16 * 128 + 128 + 8, 3 * 16 * 16
    assert count_parameters(make_layer("physics 128")) == maps + slices + tokens


def test_a_layer_is_measured():
    for name in ("softmax", "flare 4", "physics 4"):
        row = measure_layer(name, 50)
        assert row["seconds"] > 0
        assert (row["layer"], row["points"]) == (name, 50)
    assert measure_layer("flare 4", 50)["mixer"] == choose()[0]
    assert measure_layer("flare 4", 50, backend="sdpa")["mixer"] == "sdpa"
    assert make_layer("flare 4", backend="sdpa").backend == "sdpa"


def test_exponents_and_ratios_are_those_of_the_machine():
    points = (1000, 10_000, 100_000)
    rows = [lawful(name, n) for name in ("softmax", "flare 128") for n in points if n < 100_000 or name != "softmax"]
    found = summary(rows, names=["softmax", "flare 128"], largest=1_000_000)["layers"]
    assert found["softmax"]["seconds_exponent"] == pytest.approx(2)
    assert found["flare 128"]["seconds_exponent"] == pytest.approx(1)
    assert found["softmax"]["measured_to"] == 10_000
    assert found["softmax"]["extrapolated"]
    assert found["softmax"]["seconds_at_largest"] == pytest.approx(1e4)
    assert found["flare 128"]["faster_than_softmax"] == pytest.approx(1e4 / 1.128)


def test_exponents_of_memory_rest_on_sizes_beyond_the_warm_up():
    rows = [lawful("flare 128", n) | {"peak_mb": n if n > 1024 else 1e-6} for n in (1_000, 2_000, 4_000)]
    found = summary([*rows, lawful("softmax", 8_000)], names=["softmax", "flare 128"], largest=8_000)
    about = found["layers"]["flare 128"]
    assert about["peak_mb_exponent"] == pytest.approx(1)
    assert about["peak_mb_at_largest"] == pytest.approx(8_000)


def test_exponents_rest_on_the_last_decade_that_was_measured():
    """A single jump of the memory below a tenth of the largest size does not affect its exponent."""
    rows = [lawful("flare 128", n) for n in (10_000, 31_623, 100_000, 316_228, 1_000_000)]
    for row in rows[:2]:
        row["peak_mb"] *= 2
    found = summary([*rows, lawful("softmax", 8_000)], names=["softmax", "flare 128"], largest=1_000_000)
    about = found["layers"]["flare 128"]
    assert about["peak_mb_exponent"] == pytest.approx(1)


def test_an_older_summary_is_computed_again_from_its_rows():
    rows = [lawful(name, n) for name in ("softmax", "flare 128") for n in (1_000, 10_000)]
    record = {"rows": rows, "largest": 10_000, "layers": {"softmax": {}, "flare 128": {"wrong": 1}}}
    assert with_summary(record)["layers"]["flare 128"]["seconds_exponent"] == pytest.approx(1)
    assert "wrong" not in with_summary(record)["layers"]["flare 128"]
    assert speedup_where_measured(record, "flare 128") == (10_000, pytest.approx(1 / 1.128e-2))
