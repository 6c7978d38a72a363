"""The benchmarks run, keep records with what they promise, and tables and picture show nothing else."""

import gc
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from flare import build_model
from flare.mixer import native as kernels
from flare.mixer.native import library
from flare.train import planning

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(kernels.why_not() is not None, reason="no native kernels here")


@pytest.fixture(autouse=True)
def _scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """A folder with the records of tiny runs."""
    folder = tmp_path_factory.mktemp("records")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        import accuracy
        import contenders
        import memory
        import native
        import peak
        from measure import threads

        # Two threads wait long for each other where other tests run beside them.
        for script in (native, memory):
            patch.setattr(script, "threads", lambda count: threads(1))
            patch.setattr(script, "others_percent", lambda: 0.0)
        patch.setattr(peak, "ATTEMPTS", 2)
        tiny = contenders.Size(1, 100, 2, 8, 16)
        patch.setitem(contenders.SIZES, "Elasticity", tiny)
        patch.setitem(contenders.SIZES, "100k", tiny)
        patch.setattr(memory, "POINTS", (100, 300))
        patch.setattr(accuracy, "POINTS", (100, 300))
        # A process takes seconds to start, and only in a fresh one does a peak mean something.
        patch.setattr(memory, "run_isolated", lambda function, *arguments: function(*arguments))
        patch.setattr(memory, "peak_of_step", lambda level, size, contender: len(contender))
        gc.freeze()  # or every collection would go through all that the test process has loaded
        before = torch.get_num_threads()
        native.main(["--quick", "--out", str(folder)])
        memory.main(["--quick", "--out", str(folder)])
        accuracy.main(["--quick", "--out", str(folder)])
        gc.unfreeze()
        assert torch.get_num_threads() == before
    return folder


def read(folder, name):
    return json.loads((folder / f"{name}.json").read_text())


def marked_pages(folder, marks):
    """Write a page with a pair of marks for each name; return the pages by name."""
    for name, (begin, end) in marks.items():
        (folder / name).write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    return {name: folder / name for name in marks}


def written_between_marks(page):
    """Return the text of a page whose old text has been replaced, and nothing else."""
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    return text


def test_records_have_a_birth_certificate(records):
    for name in ("native", "peak", "memory", "accuracy"):
        assert {"processor", "commit", "torch", "memory"} <= set(read(records, name)["environment"])


def test_every_level_and_mode_is_timed_with_one_and_two_threads(records):
    rows = read(records, "native")["rows"]
    levels = ("residual MLP", "mixer", "safe mixer", "block", "model")
    modes, contenders = ("inference", "training step"), ("eager", "native")
    wanted = {(a, b, c, d) for a in levels for b in modes for c in contenders for d in (1, 2)}
    assert {(r["level"], r["mode"], r["contender"], r["threads"]) for r in rows} == wanted
    for row in rows:
        eager = next(r for r in rows if all(r[k] == row[k] for k in ("level", "mode", "threads")))
        assert row["ratio"] == pytest.approx(eager["seconds"] / row["seconds"])
        assert row["difference"] < 1e-3  # a race of two that compute something else would be none
        assert row["of_peak"] == pytest.approx(row["gflops_share"] + row["gexps_share"])


def test_what_does_not_compile_is_a_row_that_says_so(monkeypatch):
    import contenders
    import native
    import table

    def refuse(module, **options):
        def fail(*inputs):
            raise RuntimeError("no compiler")

        return fail

    monkeypatch.setattr(torch, "compile", refuse)
    monkeypatch.setattr(torch._dynamo, "reset", lambda: None)
    monkeypatch.setitem(contenders.SIZES, "Pipe", contenders.Size(1, 100, 2, 8, 16))
    machine = {"threads": 1, "gflops": 100.0, "gexps": 10.0}
    rows = native.compare("block", "Pipe", "inference", 1, True, [machine])
    assert [row["contender"] for row in rows] == ["eager", "native", "compiled"]
    assert rows[-1]["failed"] == "RuntimeError: no compiler"
    native.show(rows[-1])
    assert "failed" in table.speed_line(rows, "Pipe", "inference")


def test_the_safe_mixer_is_beyond_the_bound_of_the_kernels(records):
    import contenders

    size = contenders.Size(1, 100, 2, 8, 16)
    for safe in (True, False):
        q, k, v = (t.detach() for t in contenders.mixer_inputs(size, safe=safe))
        bounds = torch.ops.flare.mix(q, k, v, None, 1.0)[-1]
        assert bool((bounds > library.kernels().flare_bound()).all()) is safe


def test_work_is_that_of_the_written_out_model():
    """The reference keeps its scores, so nothing in it is done again."""
    from operations import module_work

    model, points = build_model("flare", 2, 1, blocks=2, latents=16, backend="reference"), 50
    with FlopCounterMode(display=False) as counter:
        y = model(torch.randn(1, points, 2, requires_grad=True))
        assert counter.get_total_flops() == module_work(model, training=False).flops * points
        y.sum().backward()
    assert counter.get_total_flops() == module_work(model, training=True).flops * points


def test_the_peak_is_above_what_is_reached_with_one_thread(records):
    rows = [row for row in read(records, "native")["rows"] if row["threads"] == 1]
    assert 0 < max(row["of_peak"] for row in rows) < 1


def test_memory_is_compared_and_its_growth_told(records):
    record = read(records, "memory")
    assert {row["contender"] for row in record["steps"]} == {"reference", "eager", "native"}
    assert [row["points"] for row in record["scaling"]] == [100, 300]
    assert record["largest_fits"] is True
    assert isinstance(record["exponent"], float)


def test_errors_of_both_are_told(records, tmp_path):
    import table

    rows = read(records, "accuracy")["rows"]
    assert [(row["points"], row["contender"]) for row in rows] == [
        (points, contender) for points in (100, 300) for contender in ("eager", "native")
    ]
    assert all(0 < row["output"] < 1e-5 and 0 < row["gradient"] < 1e-3 for row in rows)
    assert f"{rows[-1]['gradient']:.0e}" in table.accuracy(read(records, "accuracy"))


def test_the_reference_needs_room_for_its_scores():
    from contenders import Size
    from measure import run_isolated
    from memory import peak_of_step

    size = Size(1, 4000, 2, 8, 64)
    scores = 4 * size.heads * size.latents * size.points / 2**20
    assert 2 * scores < run_isolated(peak_of_step, "mixer", size, "reference") < 20 * scores  # not the whole process


def test_tables_stand_between_the_marks_and_say_the_records_numbers(records, tmp_path):
    import table

    page = tmp_path / "kernels.md"
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    table.main(["--records", str(records), "--page", str(page)])
    first = page.read_text()
    table.main(["--records", str(records), "--page", str(page)])
    assert page.read_text() == first
    assert first.startswith("before\n")
    assert first.endswith("after\n")
    assert "old" not in first
    for row in read(records, "native")["rows"]:
        if row["contender"] == "native":
            assert f"**{row['ratio']:.2f}×**" in first


def test_the_page_has_the_marks():
    import table

    page = table.PAGE.read_text()
    assert page.count(table.BEGIN) == page.count(table.END) == 1


def test_the_picture_shows_the_records_and_nothing_else(records, tmp_path):
    import plot

    plot.main(["--records", str(records), "--out", str(tmp_path / "kernels.png")])
    assert (tmp_path / "kernels.png").stat().st_size > 10_000
    native = read(records, "native")
    figure = plot.kernels_figure(native, None)
    heights = sorted(bar.get_height() for axes in figure.axes for bar in axes.patches)
    wall = [r for r in native["rows"] if (r["level"], r["contender"], r["threads"]) == ("model", "native", 2)]
    assert heights == sorted(row["ratio"] for row in wall)


def test_a_picture_without_a_record_is_refused(tmp_path):
    import plot

    with pytest.raises(SystemExit, match=r"native\.json"):
        plot.main(["--records", str(tmp_path)])


def test_the_table_of_peers_says_the_records_numbers(tmp_path, monkeypatch):
    import peers
    from measure import threads

    monkeypatch.setattr(peers, "threads", lambda count: threads(1))
    monkeypatch.setattr(peers, "others_percent", lambda: 0.0)
    page = tmp_path / "peers.md"
    page.write_text(f"before\n{peers.BEGIN}\nold\n{peers.END}\nafter\n")
    peers.main(["--points", "30", "--rounds", "1", "--out", str(tmp_path), "--page", str(page)])
    text, rows = page.read_text(), read(tmp_path, "peers")["rows"]
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert {row["model"] for row in rows} >= {"flare", "transolver", "lno", "gnot"}
    for row in rows:
        assert f"| {row['model']} | {row['parameters']:,} |" in text
        assert row["training step, times FLARE"] == pytest.approx(row["training step"] / rows[0]["training step"])
    assert peers.PAGE.read_text().count(peers.BEGIN) == 1


def test_the_table_of_sequences_says_the_records_numbers(tmp_path, monkeypatch):
    import sequences
    from measure import threads

    monkeypatch.setattr(sequences, "threads", lambda count: threads(1))
    monkeypatch.setattr(sequences, "others_percent", lambda: 0.0)
    monkeypatch.setattr(sequences, "LENGTHS", (32, 64))
    monkeypatch.setattr(sequences, "run_isolated", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(sequences, "peak_of_step", lambda attention, length: len(attention) * length)
    page, picture = tmp_path / "lra.md", tmp_path / "sequences.png"
    page.write_text(f"before\n{sequences.BEGIN}\nold\n{sequences.END}\nafter\n")
    sequences.main(["--rounds", "1", "--out", str(tmp_path), "--page", str(page), "--picture", str(picture)])
    text, rows = page.read_text(), read(tmp_path, "sequences")["rows"]
    assert len(rows) == 2 * len(sequences.CONTENDERS)
    for row in rows:
        assert f"{row['length'] / row['seconds'] / 1e3:.1f}, {row['peak_mb']:,.0f}" in text
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "](sequences.png)" in text
    assert sequences.PAGE.read_text().count(sequences.BEGIN) == 1


def test_the_tables_of_solvers_say_the_records_numbers(tmp_path, monkeypatch):
    import solvers

    forms = [("elasticity", {}, 3), ("darcy", {"resolution": 8, "stride": 1, "grid": "node"}, 2)]
    pages = {"PERFORMANCE": solvers.COST, "VALIDATION": solvers.STATISTICS}
    for name, value in {"FORMS": forms, "RESULTS": tmp_path, **marked_pages(tmp_path, pages)}.items():
        monkeypatch.setattr(solvers, name, value)
    monkeypatch.setattr(solvers, "load", lambda name: read(tmp_path, name))
    solvers.main([])
    cost, statistics = (written_between_marks(tmp_path / name) for name in pages)
    rows = read(tmp_path, "solvers")["rows"]
    assert rows[0]["landmarks"]["mean"] > 100
    assert f"| elasticity: mean | {rows[0]['landmarks']['mean']:.4g} | 185 |" in statistics
    assert rows[1]["landmarks"] == {}
    assert "| elasticity, **as published** |" in cost
    for row in rows:
        assert 0 < row["median"] <= row["most"]


def test_the_tables_of_printing_say_the_records_numbers_and_what_is_too_much(tmp_path, monkeypatch):
    import lpbf

    page = tmp_path / "lpbf.md"
    page.write_text(f"before\n{lpbf.BEGIN}\nold\n{lpbf.END}\nafter\n")
    cases = {"slow": (lpbf.Tube(8, 2, 1), 1e-6, None), "quick": (lpbf.Tube(8, 2, 1), 1e6, 1e6)}
    changes = {"CASES": cases, "GROWTH": [lpbf.Tube(8, 2, 1), lpbf.Tube(12, 2, 1)], "REFINEMENTS": (1,)}
    for name, value in changes.items():
        monkeypatch.setattr(lpbf, name, value)
    monkeypatch.setattr(lpbf, "run_isolated", lambda function, *arguments: 100.0)
    monkeypatch.setattr(lpbf, "others_percent", lambda: 0.0)
    lpbf.main(tmp_path, page)
    text, record = page.read_text(), read(tmp_path, "lpbf")
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    slow, quick = (next(line for line in text.splitlines() if line.startswith(f"| {name}")) for name in cases)
    assert "too much" in slow
    assert "too much" not in quick
    assert record["cases"]["quick"]["nodes"] == 320
    assert record["exponent"] == pytest.approx(
        np.log(record["growth"][1]["seconds"] / record["growth"][0]["seconds"])
        / np.log(record["growth"][1]["nodes"] / record["growth"][0]["nodes"])
    )
    assert [row["part"] for row in record["iterations"]] == ["block", "frame"]
    assert lpbf.PAGE.read_text().count(lpbf.BEGIN) == 1


def test_the_tables_of_cars_say_the_records_numbers(tmp_path, monkeypatch):
    import cars

    pages = {"PERFORMANCE": cars.COST, "VALIDATION": cars.ACCURACY}
    small = {"RESULTS": tmp_path, "CARS": 1, "LEVELS": [1, 2], "REFINEMENTS": [0.25], "SIZES": [100, 200]}
    for name, value in {**small, **marked_pages(tmp_path, pages)}.items():
        monkeypatch.setattr(cars, name, value)
    monkeypatch.setattr(cars, "run_isolated", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(cars, "load", lambda name: read(tmp_path, name))
    cars.main()
    cost, accuracy = (written_between_marks(tmp_path / name) for name in pages)
    record = read(tmp_path, "cars")
    assert [len(row["errors"]) for row in record["accuracy"]] == [2] * 6
    assert all(row["errors"][0] > row["errors"][1] for row in record["accuracy"])
    for row in record["accuracy"]:
        assert f"| {row['method']} | {row['errors'][0]:.4f} | {row['errors'][1]:.4f} |" in accuracy
    assert f"| 0.25 | {record['cost'][0]['panels']:,} |" in cost


def test_the_table_of_the_stream_says_the_records_numbers(tmp_path, monkeypatch):
    import stream

    page = tmp_path / "million.md"
    page.write_text(f"before\n{stream.BEGIN}\nold\n{stream.END}\nafter\n")
    for name, value in {"PAGE": page, "RESULTS": tmp_path}.items():
        monkeypatch.setattr(stream, name, value)
    monkeypatch.setattr(stream, "run_isolated", lambda function, *arguments: function(*arguments))
    assert stream.main(["--quick", "--out", str(tmp_path)]) == 0
    record, text = read(tmp_path, "stream"), page.read_text()
    assert record["disk"]["points"] == 10_000
    errors, seconds = record["whole"]["errors"], record["whole"]["seconds"]
    assert max(errors.values()) < 1e-5  # rounding, made larger by the head: see tests/models/test_streaming.py
    assert errors["chunks"] < stream.FARTHER * errors["whole"]
    apart = record["whole"]["chunks_to_whole"]
    assert 0 < apart <= sum(errors.values()) * (1 + 1e-6)
    assert f"| in chunks | 400 | {seconds['chunks']:.3g} |  | {errors['chunks']:.1e} | {apart:.1e} |" in text
    assert "old" not in text
    monkeypatch.setattr(stream, "LIMIT_GB", -1)
    assert stream.main(["--quick"]) == 1, "a broken promise is no success"


@pytest.mark.slow
def test_a_million_points_stream_through_eight_blocks_in_little_memory():
    import stream
    from measure import run_isolated

    in_memory = 1_000_000 * 64 * 4 / 2**20  # features of all points, which are below the limit for a file
    assert run_isolated(stream.from_disk_to_disk, 1_000_000, "auto")["peak_mb"] < 300 + in_memory


def test_the_table_of_the_planner_says_how_far_it_is_off(tmp_path, monkeypatch):
    import plan

    page = tmp_path / "million.md"
    page.write_text(f"before\n{plan.BEGIN}\nold\n{plan.END}\nafter\n")
    for name, value in {"PAGE": page, "RESULTS": tmp_path}.items():
        monkeypatch.setattr(plan, name, value)
    tenth_more = {"memory_mb": 1.1, "seconds": 1.2}

    def law(workload):
        """A machine that follows the planner's laws up to 220,000 points and needs more beyond."""
        w, b, m = workload.total_points, workload.size("blocks"), workload.size("latents")
        memory = 300 + (0 if workload.is_streamed else 1e-3 * w * b) + workload.known_mb
        need = {"memory_mb": memory, "seconds": 1e-6 * w * b + 1e-8 * w * b * m}
        return plan.Usage(**{key: need[key] * (tenth_more[key] if w > 220_000 else 1) for key in need})

    monkeypatch.setattr(planning, "measure", law)
    monkeypatch.setattr(plan, "measured", law)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    assert plan.main([]) == 0
    record, text = read(tmp_path, "plan"), page.read_text()
    assert record["holds"]
    assert [row["kind"] for row in record["rows"]] == [case[0] for case in plan.CASES]
    assert {"training in bf16", "training on 2 ranks, per rank"} < {row["kind"] for row in record["rows"]}
    assert "| training | 100,000 | 1 | 8 | 128 |" in text
    assert "Off by at most 9% of the memory and 17% of the time." in text
    tenth_more["memory_mb"] = 1.3
    assert plan.main([]) == 1
    assert not read(tmp_path, "plan")["holds"]
