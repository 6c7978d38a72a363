"""Estimated time of jobs, within a factor of two or three on a machine like that of benchmarks/results."""

from __future__ import annotations

from dataclasses import replace
from math import log2, prod

from flare.data.benchmarks.cards import card
from flare.physics import generator_class
from flare.reproduce.analyses import CostAnalysis, DataAnalysis, Experiment
from flare.reproduce.items.printed_parts import COARSER, EnrichedParts
from flare.reproduce.jobs import Data, Job, Training, recipe
from flare.reproduce.sequences import Classification, Sequences

STEP = {
    "flare": (0.0089, 0.0055),
    "gnot": (0.073, 0.035),
    "lno": (0.030, 0.025),
    "perceiver": (0.040, 0.055),
    "transformer": (0.0060, 0.0055),
    "transolver": (0.0176, 0.0120),
}
"""Model -> core seconds of a training step per block and 1,000 points, with the channels of the paper on Elasticity and
with half of them. Narrow heads make attention slow, so half of the channels is not always faster."""
ATTENTION = 0.032
"""Further core seconds of the transformer per (1,000 points)²."""
BY_LATENTS = 0.25
"""Share of FLARE's time that grows with the latents, at 64 latents."""
LATENT_BLOCKS = (2.0, 0.2)
"""Factor of the time of a block with latent blocks, which have no kernel, and increase for each of them."""
GRID = 2.0
"""Factor of the time of Transolver with convolutions."""
MAKING = {"elasticity": 0.011, "darcy": 0.81, "airfoil": 2.3, "pipe": 1.4, "lpbf": 60.0, "car-potential": 2.2}
"""Dataset -> core seconds to generate a sample in its published form (benchmarks/results/solvers.json, cars.json)."""
SEQUENCES = {"listops": 0.0008, "pathfinder": 0.002}
"""Dataset -> core seconds to generate a sequence."""
TOKEN = 6e-6
"""Core seconds of a training step per token and block of 64 channels, about the same for all attentions."""
TOKENS = {"listops-small": 45, "image-small": 64, "listops": 2000, "text": 4000, "retrieval": 8000}
"""Task -> tokens of a sample with padding, if other than 1,024."""
READ = {"image": 45_000, "text": 22_500, "retrieval": 147_086}
"""Dataset -> training samples in published files."""
TESTING = 0.1
"""Time of evaluations as a share of the time of training."""
LPBF_POINTS, LPBF_LAYERS, LPBF_POWER = 20_000, 15, 1.2
"""Mean number of points of a part with this many layers per voxel, and the power by which it falls with more layers."""


def making_seconds(data: Data) -> float:
    """Estimate the core seconds to generate a dataset. The time is proportional to the points that are solved for."""
    if data.published:
        return 0.0
    if isinstance(data, Sequences):
        return data.samples * SEQUENCES[data.name]
    if isinstance(data, EnrichedParts):  # the parts themselves are another dataset
        return data.drafts * MAKING[data.name] / COARSER**3
    if data.name == "lpbf":  # the time is that of voxels before they are merged
        return data.samples * MAKING[data.name] * _coarser(data) ** 3
    if data.name == "car-potential":  # the time is that of panels, not of points
        return data.samples * MAKING[data.name] * data.options.get("refinement", 1.0) ** 4
    solved = replace(data, options={key: value for key, value in data.options.items() if key != "stride"})
    return data.samples * MAKING[data.name] * points(solved) / points(replace(data, options={}))


def job_seconds(job: Job) -> float:
    """Estimate the core seconds of a job, given its data and its trained model."""
    if isinstance(job, Classification):
        return _classification_seconds(job)
    if isinstance(job, Training):
        return _training_seconds(job)
    if isinstance(job, CostAnalysis):
        return 0.5
    if isinstance(job, Experiment):
        return job.seconds
    return 0.05 * job.of.samples if isinstance(job, DataAnalysis) else 10.0


def points(data: Data) -> float:
    """Return the number of points of a sample."""
    if data.name == "lpbf":
        return LPBF_POINTS * _coarser(data) ** LPBF_POWER
    if data.published:
        return float(card(data.name).points)
    grid = generator_class(data.name)(**data.options).schema().grid
    known = data.options.get("points", card(data.name).points)
    return float(prod(grid)) if grid else float(known)


def _coarser(data: Data) -> float:
    """Return the edge of the usual voxel divided by that of this dataset."""
    return LPBF_LAYERS / data.options.get("layers", LPBF_LAYERS)


def _training_seconds(job: Training) -> float:
    settings = job.settings()
    model, name = settings["model"], settings["model"]["name"]
    thousands = min(points(job.on), settings["data"].get("subsample") or float("inf")) / 1000
    papers, half = STEP[name]
    width = model["channels"] / recipe("elasticity", name)["model"]["channels"]
    step = papers * width ** log2(papers / half) * thousands
    if name == "transolver" and model.get("grid"):
        step *= GRID
    if name == "transformer":
        step += ATTENTION * thousands**2
    if name == "flare":
        step *= 1 - BY_LATENTS + BY_LATENTS * model["latents"] / 64
        if model.get("latent_blocks"):
            step *= LATENT_BLOCKS[0] + LATENT_BLOCKS[1] * model["latent_blocks"]
    return 2.0 + step * model["blocks"] * (job.on.samples - job.on.test) * settings["epochs"] * (1 + TESTING)


def _classification_seconds(job: Classification) -> float:
    settings = job.settings()
    model, batch = settings["model"], settings["data"]["batch_size"]
    samples = READ.get(job.on.name, job.on.samples - job.on.test)
    steps = settings.get("steps") or settings["epochs"] * samples / batch
    size = model["blocks"] * (model["channels"] / 64) ** 2
    return 2.0 + steps * batch * TOKENS.get(job.task, 1024) * TOKEN * size * (1 + TESTING)
