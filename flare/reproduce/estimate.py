"""How long a job will take, roughly: within a factor of two or three on a machine like that of benchmarks/results."""

from __future__ import annotations

from dataclasses import replace
from math import log2, prod

from flare.data.benchmarks.cards import card
from flare.physics import generator_class
from flare.reproduce.analyses import DatasetStatistics, Experiment, ModelCost
from flare.reproduce.classification import Classification, Sequences
from flare.reproduce.jobs import Data, Job, Training, recipe

STEP = {
    "flare": (0.0089, 0.0055),
    "gnot": (0.073, 0.035),
    "lno": (0.030, 0.025),
    "perceiver": (0.040, 0.055),
    "transformer": (0.0060, 0.0055),
    "transolver": (0.0176, 0.0120),
}
"""Core seconds of a training step, by block and 1,000 points of a sample: with the paper's channels on Elasticity, and
with half of them. Narrow heads make attention slow, so half is not always less."""
ATTENTION = 0.032
"""The transformer's besides, for each square of 1,000 points."""
BY_LATENTS = 0.25
"""Part of FLARE's that grows with its latents, at 64."""
LATENT_BLOCKS = (2.0, 0.2)
"""Times that a block costs with latent blocks, for which there is no kernel, and for each of them besides."""
GRID = 2.0
"""How much more a step of Transolver costs with convolutions."""
MAKING = {"elasticity": 0.011, "darcy": 0.81, "airfoil": 2.3, "pipe": 1.4, "lpbf": 60.0, "car-potential": 2.2}
"""Core seconds for a sample in its published form: benchmarks/results/solvers.json and cars.json; of LPBF a long
average."""
SEQUENCES = {"listops": 0.0008, "pathfinder": 0.002}
"""Core seconds for a sample of these."""
TOKEN = 6e-6
"""Core seconds of a training step, by token, block and 64 channels: of all attentions about."""
TOKENS = {"listops-small": 45, "image-small": 64, "listops": 2000, "text": 4000, "retrieval": 8000}
"""Of a sample, with its padding; 1,024 of the others."""
READ = {"image": 45_000, "text": 22_500, "retrieval": 147_086}
"""Training samples in published files."""
TESTING = 0.1
"""Part of the time of training that evaluations take."""
LPBF_POINTS, LPBF_LAYERS, LPBF_POWER = 20_000, 15, 1.2
"""Of a part, on average, with so many layers to a voxel, and how they fall with more: merging leaves about the surface
of the voxels, 8,600 points with 30 layers."""


def making_seconds(data: Data) -> float:
    """Of one core, for all samples; a coarser form costs as many times less as it is solved on fewer points."""
    if data.published:
        return 0.0
    if isinstance(data, Sequences):
        return data.samples * SEQUENCES[data.name]
    if data.name == "lpbf":  # voxels cost, before they are merged
        return data.samples * MAKING[data.name] * _coarser(data) ** 3
    if data.name == "car-potential":  # panels cost, points do not
        return data.samples * MAKING[data.name] * data.options.get("refinement", 1.0) ** 4
    solved = replace(data, options={key: value for key, value in data.options.items() if key != "stride"})
    return data.samples * MAKING[data.name] * points(solved) / points(replace(data, options={}))


def job_seconds(job: Job) -> float:
    """Of one core, when its data are there and its model is trained."""
    if isinstance(job, Classification):
        return _classification_seconds(job)
    if isinstance(job, Training):
        return _training_seconds(job)
    if isinstance(job, ModelCost):
        return 0.5
    if isinstance(job, Experiment):
        return job.seconds
    return 0.05 * job.of.samples if isinstance(job, DatasetStatistics) else 10.0


def points(data: Data) -> float:
    """Of a sample."""
    if data.name == "lpbf":
        return LPBF_POINTS * _coarser(data) ** LPBF_POWER
    if data.published:
        return float(card(data.name).points)
    grid = generator_class(data.name)(**data.options).schema().grid
    known = data.options.get("points", card(data.name).points)
    return float(prod(grid)) if grid else float(known)


def _coarser(data: Data) -> float:
    """Edge of the usual voxel of a printed part to that of these."""
    return LPBF_LAYERS / data.options.get("layers", LPBF_LAYERS)


def _training_seconds(job: Training) -> float:
    settings = job.settings()
    model, name = settings["model"], settings["model"]["name"]
    thousands = min(points(job.on), settings["data"].get("subsample") or float("inf")) / 1000
    papers, half = STEP[name]
    width = model["channels"] / recipe("elasticity", name)["model"]["channels"]
    step = (
        papers
        * width ** log2(papers / half)
        * thousands
        * (GRID if name == "transolver" and model.get("grid") else 1.0)
    )
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
