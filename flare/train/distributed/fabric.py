"""Device, precision and ranks of a run, through Lightning Fabric."""

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
from flare.train.distributed.rank_failure import is_rank_failure, rank_failure
from flare.train.distributed.ranks import timeout
from flare.train.distributed.shards import shard
from flare.train.run_folder import RunFolder
from flare.utils.errors import ConfigError

logger = logging.getLogger(__name__)


PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}

DEPRECATIONS = r"`?(torch\.distributed\.|broadcast_buffers)"
"""Deprecation warnings inside torch and Lightning, which users can do nothing about."""

_WORLDS: list[Any] = []
"""Process groups that this process has left. Destroying a group waits for its threads, which may wait for the GIL.
Python releases the GIL if it drops the last reference itself; the reducer of DDP does not."""


def launched_fabric(config: TrainConfig, run: RunFolder) -> AbstractContextManager[Fabric]:
    """Launch Fabric for a run. Under `torchrun` it joins the process group, and leaves it at the end."""
    here, world = (int(os.environ.get(name, "1")) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    places = {"devices": here, "num_nodes": world // here, "strategy": _strategy(config, world)}
    return _launched(_make_fabric(config, **places), config, run)


def lone_fabric(config: TrainConfig, run: RunFolder, *, shares: bool) -> AbstractContextManager[Fabric]:
    """Launch Fabric for a single rank, also under torchrun; `shares` uses the code path of several ranks."""
    if shares:
        stores: Any = torch.distributed  # the stubs do not export HashStore
        backend = "gloo" if _on_cpu(config.device) else "nccl"
        torch.distributed.init_process_group(backend, store=stores.HashStore(), rank=0, world_size=1)
    places = {"devices": 1, "num_nodes": 1, "strategy": _data_parallel(config) if shares else "auto"}
    return _launched(_make_fabric(config, plugins=LightningEnvironment(), **places), config, run)


@contextmanager
def _launched(fabric: Fabric, config: TrainConfig, run: RunFolder) -> Iterator[Fabric]:
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # its messages would break the progress bar
    threads = torch.get_num_threads()
    fabric.launch()
    torch.set_num_threads(threads)  # Lightning resets the number of threads for a group of ranks
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", DEPRECATIONS, FutureWarning)
            yield fabric
        fabric.barrier()  # no rank leaves before all are done
    except RuntimeError as error:
        if not is_rank_failure(error):
            raise
        when = "outside of the training steps"
        raise rank_failure(error, fabric.world_size, when, run, shards=config.shard) from error
    finally:
        if torch.distributed.is_initialized():
            leave_ranks()


def leave_ranks() -> None:
    """Destroy the process group of this process."""
    _WORLDS.append(torch.distributed.group.WORLD)
    torch.distributed.destroy_process_group()


def _make_fabric(config: TrainConfig, **places: Any) -> Fabric:
    precision = config.precision
    if precision == "16" and _on_cpu(config.device):
        logger.info("precision 16 needs a GPU; this run uses precision 32")
        precision = "32"
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device='cuda' cannot be used: torch finds no CUDA device; use device='cpu'")
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
    # Buffers are normalizers and random features, which are equal on all ranks.
    return DDPStrategy(broadcast_buffers=False, timeout=timeout(config))


def _on_cpu(device: str) -> bool:
    return device == "cpu" or (device == "auto" and not torch.cuda.is_available())
