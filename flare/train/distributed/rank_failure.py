"""When a rank is gone: how the others know, and what each tells its user."""

from __future__ import annotations

import re

from torch import distributed as dist

from flare.train.checkpoint import saved_step
from flare.train.run_folder import RunFolder
from flare.utils.errors import RankLost, one_line

GONE = re.compile(
    r"connection (closed|reset) by peer|connection (refused|timed out)|broken pipe|no route to host|socket timeout"
    r"|timed out (waiting \d|connecting)|operation timed out|application timeout caused pair closure",
    re.IGNORECASE,
)
"""How gloo says that a peer is gone or silent. Its other errors, such as of sizes that differ, are mistakes of ours."""


def is_lost(error: RuntimeError) -> bool:
    """Whether an error says that another rank is gone or silent: torch has a class for it on GPUs, not with gloo."""
    return isinstance(error, dist.DistError) or GONE.search(str(error)) is not None


def lost(error: RuntimeError, ranks: int, when: str, run: RunFolder, *, shards: bool) -> RankLost:
    """What to say of it: what happened, what is left of the run, and how to go on."""
    words = one_line(error).split("] ", 1)[-1].split(". ")[0]  # without the library's file name and good wishes
    happened = f"another of the {ranks} ranks is gone or silent, {when} ({words}); if it could, it said why."
    if not run.exists:
        return RankLost(f"{happened} Nothing was written yet: give the same command again")
    with run.saving():  # another may just be at it
        step = saved_step(run)
    gone = " Its shard of the weights is gone, and with it what came after the last checkpoint." if shards else ""
    left = "No checkpoint was written yet" if step is None else f"The run is saved at step {step}"
    command = f"flare train --resume {run.path}"
    return RankLost(
        f"{happened}{gone} {left}. Go on with any number of ranks:  torchrun --nproc-per-node {ranks} "
        f"-m {command}   or one alone:  {command}"
    )
