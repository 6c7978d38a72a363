"""Measured costs of one layer, and their extrapolation."""

import pytest

from flare.mixer import choose
from flare.models import count_parameters
from flare.reproduce.items.layer_costs import (
    SIZES,
    make_layer,
    measure_layer,
    rows_of,
    speedup_where_measured,
    summary,
    with_summary,
)


def lawful(name, points, threads, precision="32", sizes=SIZES, backend="auto"):
    """A machine on which softmax takes N² and the others N."""
    kind, _, size = name.partition(" ")
    seconds = 1e-8 * points**2 if kind == "softmax" else 1e-6 * points * (1 + int(size) / 1000)
    measured = {"seconds": seconds, "peak_mb": 1e-3 * points}
    return {"layer": name, "points": points, **measured, "threads": threads, "precision": precision}


def test_layers_have_the_papers_parameters():
    assert count_parameters(make_layer("flare 128")) == 198_016
    assert count_parameters(make_layer("softmax")) == 4 * 128 * 128 + 128
    maps, slices, tokens = 3 * (128 * 128 + 128), 16 * 128 + 128 + 8, 3 * 16 * 16
    assert count_parameters(make_layer("physics 128")) == maps + slices + tokens


def test_a_layer_is_measured():
    for name in ("softmax", "flare 4", "physics 4"):
        row = measure_layer(name, 50, 1)
        assert row["seconds"] > 0
        assert (row["layer"], row["points"]) == (name, 50)
    assert measure_layer("flare 4", 50, 1)["mixer"] == choose()[0]
    assert measure_layer("flare 4", 50, 1, backend="sdpa")["mixer"] == "sdpa"
    assert make_layer("flare 4", backend="sdpa").backend == "sdpa"


def test_exponents_and_ratios_are_those_of_the_machine():
    points = (1000, 10_000, 100_000)
    rows = [lawful(name, n, 1) for name in ("softmax", "flare 128") for n in points if n < 100_000 or name != "softmax"]
    found = summary(rows, names=["softmax", "flare 128"], largest=1_000_000)["layers"]
    assert found["softmax"]["seconds_exponent"] == pytest.approx(2)
    assert found["flare 128"]["seconds_exponent"] == pytest.approx(1)
    assert found["softmax"]["measured_to"] == 10_000
    assert found["softmax"]["extrapolated"]
    assert found["softmax"]["seconds_at_largest"] == pytest.approx(1e4)
    assert found["flare 128"]["faster_than_softmax"] == pytest.approx(1e4 / 1.128)


def test_exponents_of_memory_rest_on_sizes_beyond_the_warm_up():
    rows = [lawful("flare 128", n, 1) | {"peak_mb": n if n > 1024 else 1e-6} for n in (1_000, 2_000, 4_000)]
    (about,) = summary(rows, names=["flare 128"], largest=8_000)["layers"].values()
    assert about["peak_mb_exponent"] == pytest.approx(1)
    assert about["peak_mb_at_largest"] == pytest.approx(8_000)


def test_rows_of_another_setting_are_kept_but_not_compared():
    mine, faster = lawful("flare 128", 1_000, 1), lawful("flare 128", 1_000, 2)
    narrow = {**mine, "sizes": [64, 8, 8]}
    plain = {**mine, "backend": "sdpa"}
    record = {"rows": [mine, faster, narrow, plain], "threads": 1, "precision": "32"}
    assert rows_of(record) == [mine]
    assert rows_of(record | {"threads": 2}) == [faster]
    assert rows_of(record | {"sizes": {**SIZES, "flare": (64, 8, 8)}}) == [narrow]
    assert rows_of(record | {"backend": "sdpa"}) == [plain]


def test_exponents_rest_on_the_last_decade_that_was_measured():
    """Memory that jumps once, below a tenth of the largest size, does not tell in its exponent."""
    rows = [lawful("flare 128", n, 1) for n in (10_000, 31_623, 100_000, 316_228, 1_000_000)]
    for row in rows[:2]:
        row["peak_mb"] *= 2
    (about,) = summary(rows, names=["flare 128"], largest=1_000_000)["layers"].values()
    assert about["peak_mb_exponent"] == pytest.approx(1)


def test_an_older_summary_is_made_again_of_its_rows():
    rows = [lawful(name, n, 1) for name in ("softmax", "flare 128") for n in (1_000, 10_000)]
    record = {"rows": rows, "threads": 1, "largest": 10_000, "layers": {"softmax": {}, "flare 128": {"wrong": 1}}}
    assert with_summary(record)["layers"]["flare 128"]["seconds_exponent"] == pytest.approx(1)
    assert "wrong" not in with_summary(record)["layers"]["flare 128"]
    assert speedup_where_measured(record, "flare 128") == (10_000, pytest.approx(1 / 1.128e-2))
