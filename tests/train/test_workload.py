"""Workloads: the memory that is known of them, and how a prediction is evaluated."""

from dataclasses import replace

import pytest
import torch

from flare.mixer.native import block_ops
from flare.models import build_model, count_parameters
from flare.models.streaming import CHUNK
from flare.train.workload import Workload, prediction_workload

MODEL = {"name": "flare", "channels": 16, "heads": 2, "kv_depth": 0, "ffn_depth": 0, "blocks": 4, "latents": 8}
STEP = Workload(model=MODEL, points=1000)
LARGE = 600_000
"""Points whose arrays are returned to the system."""


def test_many_latents_and_shared_gradients_need_memory():
    many = replace(STEP, model=MODEL | {"latents": 10_000}, points=LARGE)
    # Weights, gradients and two averages; then the latents that each of 4 blocks keeps, and those in use.
    arrays = 4 * 10_000 * 16 * 4 * 4 + 4 * 10_000 * (16 + 2) * (4 + 6 + 2 * torch.get_num_threads())
    assert many.known_mb == pytest.approx(arrays / 2**20, rel=0.01)
    assert many.parameters == count_parameters(build_model("flare", 3, 1, **many.sizes))
    for shared in ("samples", "points"):
        assert replace(many, shared=shared).known_mb - many.known_mb == pytest.approx(4 * many.parameters / 2**20)


@pytest.mark.kernels
@pytest.mark.parametrize("change", [{}, {"qk_norm": True}, {"kv_depth": 2, "ffn_depth": 1, "io_depth": 0}])
def test_activations_that_the_kernels_keep_are_known(change):
    workload = replace(STEP, model=MODEL | change, batch=2)
    before = set(block_ops._lent)
    y = build_model("flare", 3, 1, **workload.sizes)(torch.randn(2, 1000, 3))
    kept = [reference() for number, (reference, _) in block_ops._lent.items() if number not in before]
    assert y.requires_grad
    assert workload.activations_mb == pytest.approx(sum(array.nbytes for array in kept) / 2**20)
    for other in ({"points": LARGE}, {"recompute": True}, {"kind": "evaluation"}, {"precision": "bf16"}):
        assert replace(workload, **other).activations_mb == 0


def test_predictions_are_streamed_if_they_have_more_points_than_a_chunk():
    assert prediction_workload(STEP, CHUNK).kind == prediction_workload(STEP, 10**9, chunk=None).kind == "whole"
    for points, chunk in ((CHUNK + 1, CHUNK), (CHUNK, CHUNK - 1)):
        assert prediction_workload(STEP, points, chunk=chunk).kind == "stream"
    training = replace(STEP, points=5, batch=7, precision="bf16", recompute=True, shared="points")
    assert prediction_workload(training, 10**9) == Workload(model=MODEL, points=10**9, kind="scratch")
