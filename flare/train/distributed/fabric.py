"""Device, precision and ranks for a run, through Lightning Fabric. One process is not a special case."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments import LightningEnvironment
from lightning_fabric.strategies import DDPStrategy, ModelParallelStrategy

from flare.train.config import TrainConfig
from flare.train.distributed.rank_failure import is_lost, lost
from flare.train.distributed.ranks import timeout
from flare.train.distributed.shards import shard
from flare.train.run_folder import RunFolder
from flare.utils.errors import ConfigError

logger = logging.getLogger(__name__)


PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}

OF_TORCH = r"`?(torch\.distributed\.|broadcast_buffers)"
"""How deprecations begin that torch tells of itself and of Lightning, once a rank; a user can do nothing about them."""

_WORLDS: list[Any] = []
"""Groups of ranks that were left, one for each run in this process. A group ends by waiting for threads of its own, and
these may wait for Python's lock. Python lets go of it if it drops the last reference itself; DDP's reducer does not."""


def launched_fabric(config: TrainConfig, run: RunFolder) -> AbstractContextManager[Fabric]:
    """A launched Fabric; under `torchrun` it joins the processes torchrun started, and leaves them at the end."""
    here, world = (int(os.environ.get(name, "1")) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    places = {"devices": here, "num_nodes": world // here, "strategy": _strategy(config, world)}
    return _launched(_make_fabric(config, **places), config, run)


def lone_fabric(config: TrainConfig, run: RunFolder, *, shares: bool) -> AbstractContextManager[Fabric]:
    """One rank by itself, also under torchrun. One that `shares` goes the way of ranks that share something."""
    if shares:
        stores: Any = torch.distributed  # torch does not say that it exports them
        backend = "gloo" if _on_cpu(config.device) else "nccl"
        torch.distributed.init_process_group(backend, store=stores.HashStore(), rank=0, world_size=1)
    places = {"devices": 1, "num_nodes": 1, "strategy": _data_parallel(config) if shares else "auto"}
    return _launched(_make_fabric(config, plugins=LightningEnvironment(), **places), config, run)


@contextmanager
def _launched(fabric: Fabric, config: TrainConfig, run: RunFolder) -> Iterator[Fabric]:
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # its banners would break the progress bar
    threads = torch.get_num_threads()
    fabric.launch()
    torch.set_num_threads(threads)  # Lightning gives a group of ranks all cores, whatever was set before
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", OF_TORCH, FutureWarning)
            yield fabric
        fabric.barrier()  # nobody leaves while another still has something to say
    except RuntimeError as error:
        if not is_lost(error):
            raise
        when = "outside of the training steps"
        raise lost(error, fabric.world_size, when, run, shards=config.shard) from error
    finally:
        if torch.distributed.is_initialized():
            leave_ranks()


def leave_ranks() -> None:
    """Ends the group of ranks of this process. What was trained in it may be dropped whenever."""
    _WORLDS.append(torch.distributed.group.WORLD)
    torch.distributed.destroy_process_group()


def _make_fabric(config: TrainConfig, **places: Any) -> Fabric:
    precision = config.precision
    if precision == "16" and _on_cpu(config.device):
        logger.info("precision 16 needs a GPU; on this CPU the run uses 32, which its kernels are made for")
        precision = "32"
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device='cuda' cannot be used: torch sees no CUDA device here; use --device cpu")
    try:
        return Fabric(accelerator=config.device, precision=PRECISIONS[precision], **places)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"device={config.device!r} cannot be used: {error}") from None


def _strategy(config: TrainConfig, world: int) -> Any:
    if world == 1:
        return "auto"
    if config.shard:
        return ModelParallelStrategy(shard, data_parallel_size=world, tensor_parallel_size=1, timeout=timeout(config))
    return _data_parallel(config)


def _data_parallel(config: TrainConfig) -> DDPStrategy:
    # Buffers are normalisers and random features: equal on all ranks without being sent.
    return DDPStrategy(broadcast_buffers=False, timeout=timeout(config))


def _on_cpu(device: str) -> bool:
    return device == "cpu" or (device == "auto" and not torch.cuda.is_available())
