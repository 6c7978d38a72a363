"""Rank failure: detection by the other ranks, and the error they raise."""

from __future__ import annotations

import re

from torch import distributed as dist

from flare.train.checkpoint import saved_step
from flare.train.run_folder import RunFolder
from flare.utils.errors import RankFailure, one_line

GONE = re.compile(
    r"connection (closed|reset) by peer|connection (refused|timed out)|broken pipe|no route to host|socket timeout"
    r"|timed out (waiting \d|connecting)|operation timed out|application timeout caused pair closure",
    re.IGNORECASE,
)
"""Messages of gloo about a lost connection. Its other errors, such as mismatched sizes, are bugs."""


def is_rank_failure(error: RuntimeError) -> bool:
    """Return whether an error means that another rank failed: torch has a class for it on GPUs, gloo only messages."""
    return isinstance(error, dist.DistError) or GONE.search(str(error)) is not None


def rank_failure(error: RuntimeError, ranks: int, when: str, run: RunFolder, *, shards: bool) -> RankFailure:
    """Return an error that says what happened, what is saved, and how to resume."""
    reason = one_line(error).split("] ", 1)[-1].split(". ")[0]  # without the library's file name and advice
    happened = f"another of the {ranks} ranks failed or did not answer, {when} ({reason}); see its own message."
    if not run.exists:
        return RankFailure(f"{happened} Nothing was written yet: start the run again")
    with run.saving():  # another rank may be saving
        step = saved_step(run)
    lost = " Its shard of the weights is lost, and the steps since the last checkpoint." if shards else ""
    return RankFailure(
        f"{happened}{lost} The run is saved at step {step or 0}. Resume with any number of ranks:  "
        f"torchrun --nproc-per-node {ranks} -m flare train --resume {run.path}"
    )
