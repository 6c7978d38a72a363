"""Device, precision and ranks for a run, through Lightning Fabric. One process is not a special case."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy

from flare.errors import ConfigError
from flare.terminal import say
from flare.train.config import TrainConfig

PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}


@contextmanager
def launched_fabric(config: TrainConfig) -> Iterator[Fabric]:
    """A launched Fabric; under `torchrun` it joins the processes torchrun started, and leaves them at the end."""
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)  # its banners would break the progress bar
    fabric = _make_fabric(config)
    fabric.launch()
    try:
        yield fabric
        fabric.barrier()  # nobody leaves while another still has something to say
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def _make_fabric(config: TrainConfig) -> Fabric:
    here, world = (int(os.environ.get(name, "1")) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    precision = config.precision
    if precision == "16" and _on_cpu(config.device):
        say("precision 16 needs a GPU; on this CPU the run uses bf16 instead")
        precision = "bf16"
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device='cuda' cannot be used: torch sees no CUDA device here; use --device cpu")
    try:
        return Fabric(
            accelerator=config.device,
            devices=here,
            num_nodes=world // here,
            # Buffers are normalisers and random features: equal on all ranks without being sent.
            strategy=DDPStrategy(broadcast_buffers=False) if world > 1 else "auto",
            precision=PRECISIONS[precision],
        )
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"device={config.device!r} cannot be used: {error}") from None


def _on_cpu(device: str) -> bool:
    return device == "cpu" or (device == "auto" and not torch.cuda.is_available())
