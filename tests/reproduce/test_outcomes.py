"""What a stranger reads first: outcomes in the list of results, what `cpu` numbers show, and how far heads differ."""

import numpy as np
import pytest
import torch

from flare.reproduce.budgets import BUDGETS
from flare.reproduce.items.shared_latents import _heads_apart
from flare.reproduce.items.spectra import _beside_the_paper, _drawn
from flare.reproduce.ledger import Ledger, Record
from flare.reproduce.pages import write_pages
from flare.reproduce.registry import item_named
from flare.reproduce.study import chosen
from flare.spectra import Spectra, effective_rank

CPU = BUDGETS["cpu"]


def written(ledger, folder):
    write_pages(ledger, folder)
    return {path.name: path.read_text() for path in folder.glob("*.md")}


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "records")


def keep(ledger, item, only, error):
    for cell in chosen(item_named(item).cells(CPU), only):
        result = {"rel_l2": error, "rel_l2_mean_field": 0.5, "parameters": 5, "curve": [(1, error)]}
        ledger.write(cell.job, Record("done", result, made={"commit": "abc"}))


def test_every_item_with_records_has_its_outcome_in_the_list(ledger, tmp_path):
    keep(ledger, "table1", ["elasticity/flare"], 0.1)
    keep(ledger, "table1", ["elasticity/lno"], 0.2)
    keep(ledger, "elasticity-run", None, 0.005)
    pages = written(ledger, tmp_path / "pages")
    lines = pages["README.md"].splitlines()
    after = {line: lines[i + 1] for i, line in enumerate(lines[:-1]) if line.startswith("* [")}
    table1 = next(words for line, words in after.items() if "(table1.md)" in line)
    assert "**elasticity**: flare 100, lno 200; the training-mean field has 500." in table1
    assert table1.removeprefix("    * ") in pages["table1.md"], "the verdict of the page, word for word"
    assert "FLARE on Elasticity, × 1e-3: 5.00; the paper has 3.38" in pages["README.md"]
    assert "flare 0.1.0" not in pages["README.md"], "where numbers come from is told on the pages"


def claim(pages, words):
    """What is said of one of the paper's claims: here, and the verdict."""
    (line,) = [line for line in pages["README.md"].splitlines() if line.startswith("| [") and words in line]
    return [part.strip() for part in line.strip("|").split(" | ")[1:]]


def test_the_list_begins_with_what_came_of_the_papers_claims(ledger, tmp_path):
    errors = {"elasticity": (0.1, 0.2), "pipe": (0.3, 0.2)}
    for dataset, (flare, lno) in errors.items():
        keep(ledger, "table1", [f"{dataset}/flare"], flare)
        keep(ledger, "table1", [f"{dataset}/lno"], lno)
    keep(ledger, "table1", ["darcy/flare"], 0.1)
    keep(ledger, "table1", ["elasticity/flare-raw-points"], 0.4)
    keep(ledger, "table1", ["elasticity/lno-raw-points"], 0.3)
    for blocks, error in ((1, 0.3), (2, 0.2), (4, 0.25)):
        keep(ledger, "blocks-latents", [f"darcy/blocks={blocks}/latents=16"], error)
    keep(ledger, "kv-depth", ["depth=0"], 0.3)
    pages = written(ledger, tmp_path / "pages")
    told = pages["README.md"]
    assert told.index("## The paper's claims") < told.index("## What `cpu` numbers can and cannot show")
    here, verdict = claim(pages, "flare has the lowest error on elasticity")
    assert (here, verdict) == ("1. flare 100, 2. lno 200; of 2 models", "2 of 6 models: one seed: holds†")
    note = "FLARE is **not** the lowest, of one seed: 1. lno 300, 2. flare 400; of 2 models."
    assert f"† Points are normalised in this budget. With points as they are, as in the paper, {note}" in told
    assert "on Elasticity it is another one as soon as points are not normalised" in " ".join(told.split())
    assert claim(pages, "on pipe")[1] == "2 of 6 models: one seed: does **not** hold"
    here, verdict = claim(pages, "the error falls with more blocks on darcy")
    assert here == "300 to 250 from 1 to 4 blocks with 16 latents; 1 of 2 steps fall"
    assert verdict == "one seed: does **not** hold at every step"
    assert claim(pages, "a deeper MLP") == ["depth=3 100, depth=0 300", "one seed: holds"]
    assert "lowest error on darcy" not in told, "one model is no order"
    assert "independent latents beat" not in told, "without a record of shared ones"


def test_a_claim_within_the_spread_is_no_difference(ledger, tmp_path):
    near = {"independent": (0.1, 0.12), "shared": (0.11, 0.13)}
    for kind, errors in near.items():
        (cell,) = chosen(item_named("shared-latents").cells(CPU), [f"blocks=8/{kind}"])
        for seed, error in enumerate(errors):
            ledger.write(cell.job.with_seed(seed), Record("done", {"rel_l2": error, "curve": [(1, error)]}))
    here, verdict = claim(written(ledger, tmp_path / "pages"), "independent latents beat shared ones")
    assert here == "blocks=8/independent 110 ± 14, blocks=8/shared 120 ± 14"
    assert verdict == "no difference beyond the spread"


def test_a_stranger_is_told_why_the_level_is_not_the_papers(ledger, tmp_path):
    keep(ledger, "table1", ["elasticity/flare"], 0.126)
    pages = written(ledger, tmp_path / "pages")
    told = pages["README.md"].split("## What `cpu` numbers can and cannot show")[1]
    small = "400 of 1,000 training samples; 4 of 8 blocks; 32 of 64 channels; and data of our own solver"
    assert f"16 epochs with a schedule of their own, not 500; {small}" in told
    assert "That is why 126 stands beside the paper's 3.38." in told
    assert "cannot show the level" in told
    assert "(README.md#what-cpu-numbers-can-and-cannot-show)" in pages["table1.md"]
    other = Ledger(tmp_path / "other")
    keep(other, "table1", ["elasticity/lno"], 0.126)
    assert "not normalised" not in pages["README.md"]
    assert "stands beside" not in written(other, tmp_path / "without")["README.md"]


def spectra(*decays):
    """Of one block for every tuple of decays, a head for each decay."""
    values = [[[10.0 ** (-decay * i) for i in range(8)] for decay in heads] for heads in decays]
    found = torch.tensor(values, dtype=torch.float64)
    return Spectra(found, torch.zeros_like(found), 3)


APART, ALIKE = spectra((0.1, 0.9), (0.2, 0.8)), spectra((0.4, 0.5), (0.5, 0.6))


def test_the_sentence_on_heads_says_whichever_kind_has_them_apart():
    assert "Heads differ more with independent latents, as in the paper's figure." in _heads_apart(APART, ALIKE)
    assert "Heads differ more with **shared** latents, against the paper's figure." in _heads_apart(ALIKE, APART)
    assert "**Neither** kind" in _heads_apart(ALIKE, ALIKE)
    split = spectra((0.1, 0.9), (0.5, 0.5)), spectra((0.5, 0.5), (0.1, 0.9))
    told = _heads_apart(*split)
    assert "**Neither** kind" in told
    assert "(independent ones differ more in 1 of 2 blocks)" in told


def test_pages_of_spectra_tell_how_far_heads_differ(ledger, tmp_path):
    cells = [c for c in item_named("shared-latents").cells(CPU) if c.parts[0] == "spectra"]
    cells += item_named("spectra").cells(CPU)
    for cell, of in zip(cells, (APART, ALIKE, APART), strict=True):
        arrays = {"eigenvalues": np.asarray(of.eigenvalues), "spread": np.asarray(of.spread)}
        ledger.write(cell.job, Record("done", {"samples": 3, "rel_l2": 0.1}), arrays)
    pages = written(ledger, tmp_path / "pages")
    low, high = effective_rank(APART.eigenvalues)[0].sort().values.tolist()
    span = f"{low:.1f} to {high:.1f} ({(low + high) / 2:.1f})"
    assert f"Effective rank, least to most of the heads (mean), block by block: {span}, " in pages["spectra.md"]
    assert f"Heads differ most in block 1: {low:.1f} to {high:.1f}." in pages["spectra.md"]
    drawn = "Drawn are all 2 blocks. Dotted: the last of the 8 indices, 7. Dashed: the epsilon of float32"
    assert drawn in pages["spectra.md"]
    assert "The paper's figure shows blocks 1, 5 and 8 of its 8, M = 64 latents" in pages["spectra.md"]
    assert "Heads differ more with independent latents" in pages["shared-latents.md"]
    assert "Heads differ more with independent latents" in pages["README.md"]
    for page, blocks, count in (("spectra.md", "; blocks 4, not 8", 1), ("shared-latents.md", "", 2)):
        departs = f"a schedule of their own, not 500{blocks}; channels 32, not 64; norms without weight decay (#15).*"
        assert pages[page].count(departs) == count, "a picture has no row that could say it"


def test_a_picture_of_spectra_says_which_blocks_it_leaves_out():
    assert "left out: block 2 of 4." in _drawn(spectra(*[(0.1, 0.9)] * 4))
    assert "left out: blocks 2, 3, 4, 6, 7 of 8." in _drawn(spectra(*[(0.1, 0.9)] * 8))
    assert "The model has one block." in _drawn(spectra((0.1, 0.9)))


def test_spectra_stand_beside_what_the_paper_says_of_its_own():
    of = spectra((0.8, 0.9), (0.1, 0.9))
    told = _beside_the_paper(of)
    ranks = effective_rank(of.eigenvalues).tolist()
    first, deeper = (abs(a - b) / 2 for a, b in ranks)  # the standard deviation of two
    assert f"{first:.1f} in block 1 and {deeper:.1f} in the mean of the deeper ones, which agrees." in told
    assert told.count("which agrees") == 2
    assert "though" not in told
    told = _beside_the_paper(spectra((0.1, 0.9), (0.8, 0.9)))
    assert told.count("which does **not** agree") == 2
    told = _beside_the_paper(spectra((0.8, 0.9), (0.1, 0.2), (0.5, 0.9)))
    assert "which agrees, though it does not rise with every block; its standard deviation" in told
    told = _beside_the_paper(spectra((0.1, 0.2), (0.5, 0.9), (0.1, 0.9)))
    assert "which does **not** agree; its standard deviation" in told
    told = _beside_the_paper(spectra((9.0, 9.0), (9.01, 9.02)))
    assert "is 1.0 in block 1 and in the mean of the deeper ones, no difference; its standard deviation" in told
    assert told.endswith("is 0.0 in block 1 and in the mean of the deeper ones, no difference.")
    assert "agree" not in told
    assert "One block: nothing can be said" in _beside_the_paper(spectra((0.1, 0.9)))


def test_pictures_of_a_sample_depart_in_words_and_stand_beside_the_training_mean_field(ledger, tmp_path):
    points = np.random.default_rng(0).random((30, 2), dtype=np.float32)
    arrays = {"points": points, "truth": points[:, :1], "prediction": points[:, 1:]}
    facts = {"index": 3, "of_samples": 5, "rel_l2": 0.3, "fields": ["stress"], "units": ["MPa"], "grid": None}
    elasticity, darcy, pipe, _ = item_named("qualitative").cells(CPU)
    for cell, error in ((elasticity, 0.4), (darcy, 0.6), (pipe, None)):
        ledger.write(cell.job, Record("done", facts), arrays)
        if error is not None:
            ledger.write(cell.job.training, Record("done", {"rel_l2": error, "rel_l2_mean_field": 0.5}))
    text = written(ledger, tmp_path / "pages")["qualitative.md"]
    assert "elasticity 300 (mean of all 400, the training-mean field 500); darcy 300 (mean of all 600," in text
    assert "; pipe 300. No better than that field: darcy." in text
    for dataset, words in (
        ("elasticity", "16 epochs with a schedule of their own, not 500"),
        ("darcy", "22×22 points, not 85×85 (resolution 22)"),
    ):
        (caption,) = [line for line in text.splitlines() if line.startswith(f"*{dataset}: truth")]
        assert f"{words}; " in caption.split("Departures from the paper's setting: ")[1]
