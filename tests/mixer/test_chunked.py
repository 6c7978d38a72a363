"""Partial latents of chunks merge into the encode of all points."""

import pytest
import torch

from flare.mixer import chunked, encode
from flare.mixer.chunked import LatentAccumulator, PartialLatents, encode_partial


@pytest.mark.parametrize("backend", ["reference", "sdpa", "auto"])
def test_backends_give_the_same_partial_latents(backend, monkeypatch):
    monkeypatch.setattr(chunked, "TILE", 7)
    torch.manual_seed(1)
    q, k, v = torch.randn(4, 8, 6), 3 * torch.randn(2, 4, 40, 6), torch.randn(2, 4, 40, 6)
    mask = torch.rand(2, 40) > 0.4
    mask[0, 7:14] = False  # a tile without a real point
    truth = encode(q.double(), k.double(), v.double(), mask=mask, backend="reference")
    scores = torch.einsum("hmd,bhnd->bhmn", q.double(), k.double()).masked_fill(~mask[:, None, None], -torch.inf)
    part = encode_partial(q, k, v, mask=mask, backend=backend)
    torch.testing.assert_close(part.z_BHMD.double(), truth, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(part.log_sum_BHM.double(), scores.logsumexp(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", ["reference", "sdpa", "auto"])
def test_part_without_points_has_no_weight(backend):
    torch.manual_seed(2)
    q, k, v = torch.randn(4, 8, 6), torch.randn(2, 4, 40, 6), torch.randn(2, 4, 40, 6)
    none = torch.zeros(2, 5, dtype=torch.bool)
    total = LatentAccumulator()
    total.add(encode_partial(q, k[:, :, :0], v[:, :, :0], backend=backend))
    total.add(encode_partial(q, k[:, :, :5], v[:, :, :5], mask=none, backend=backend))
    assert (total.latents(torch.float32) == 0).all()
    whole = encode_partial(q, k, v, backend=backend)
    total.add(whole)
    torch.testing.assert_close(total.latents(torch.float32), whole.z_BHMD)


def test_scores_beyond_the_range_of_exp_merge():
    z, far = torch.randn(1, 1, 3, 2), torch.tensor([[[500.0, -500.0, 0.0]]])
    total = LatentAccumulator()
    total.add(PartialLatents(z, far))
    total.add(PartialLatents(-z, far - 1000))
    torch.testing.assert_close(total.latents(torch.float32), z)


def test_a_part_can_be_encoded_on_the_meta_device():
    q, k = torch.empty(4, 8, 6, device="meta"), torch.empty(2, 4, 40, 6, device="meta")
    part = encode_partial(q, k, k)
    assert (part.z_BHMD.shape, part.log_sum_BHM.shape) == ((2, 4, 8, 6), (2, 4, 8))
