"""Points split over ranks give the loss and the gradients of one rank, for any split."""

import json

import pytest
import torch
from torch import distributed as dist

from flare.mixer import encode, sharded
from flare.mixer.chunked import encode_partial
from flare.mixer.reference import scores
from flare.mixer.sharded import encode_gradients, norm_of_all
from flare.models import build_model
from flare.models.flare import recompute_blocks, split_points
from flare.train.distributed.fabric import leave_ranks

SPLITS = {2: [[0, 30, 101], [0, 101, 101], [0, 1, 101]], 4: [[0, 0, 50, 50, 101], [0, 10, 30, 31, 101]]}
"""Number of ranks to the boundaries between their points, of 101; some have none. Variants use the first split."""
VARIANTS = [
    ({}, [torch.float32, torch.float64]),
    ({"latent_blocks": 1}, [torch.float32]),
    ({"shared_latents": True}, [torch.float32]),
    ({"backend": "sdpa"}, [torch.float32]),
    ({"recompute": True}, [torch.float32]),
    ({"mixed": True}, [torch.float32]),
]


def case(dtype=torch.float32, *, recompute=False, mixed=False, **options):
    torch.manual_seed(0)
    model = build_model("flare", 3, 2, channels=16, blocks=2, heads=4, latents=8, **options).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    if recompute:
        recompute_blocks(model)
    x, y = torch.randn(2, 101, 3, dtype=dtype), torch.randn(2, 101, 2, dtype=dtype)
    return model, x, y, torch.rand(2, 101) > 0.3


def loss_and_gradients(model, x, y, mask, group=None, mixed=False):
    """Return the relative L2 error of the whole sample and the gradients of the points of this rank."""
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        predicted = model(x, mask)
    difference = (predicted - y).masked_fill(~mask[..., None], 0)
    error, size = (norm_of_all(torch.linalg.vector_norm(t, dim=(1, 2)), group) for t in (difference, y))
    loss = (error / size).mean()
    return loss, torch.autograd.grad(loss, list(model.parameters()))


def rank_main(rank, ranks, path):
    """Compare the loss and the gradients of each rank with those of a single rank; write the errors to a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}/meet", rank=rank, world_size=ranks)
    sent = []
    all_reduce = dist.all_reduce

    def counted(tensor, *words, **options):
        sent.append(tensor.numel() * tensor.element_size())
        return all_reduce(tensor, *words, **options)

    found = []
    for options, dtypes in VARIANTS:
        for dtype in dtypes:
            model, x, y, mask = case(dtype, **options)
            mixed = options.get("mixed", False)
            truth, wanted = loss_and_gradients(model, x, y, mask)
            for ends in SPLITS[ranks][: 1 if options else None]:
                mine = slice(ends[rank], ends[rank + 1])
                split_points(model, dist.group.WORLD)
                sent.clear()
                dist.all_reduce = counted
                loss, got = loss_and_gradients(model, x[:, mine], y[:, mine], mask[:, mine], dist.group.WORLD, mixed)
                traffic = [sent[:]]
                if ends == SPLITS[ranks][0]:
                    sent.clear()
                    longer = [torch.cat([t[:, mine]] * 3, dim=1) for t in (x, y, mask)]
                    loss_and_gradients(model, *longer, dist.group.WORLD, mixed)
                    traffic.append(sent[:])
                dist.all_reduce = all_reduce
                split_points(model, None)
                for g in got:
                    dist.all_reduce(g)
                size = max(float(w.abs().max()) for w in wanted)
                worst = max(float((g - w).abs().max()) for g, w in zip(got, wanted, strict=True)) / size
                off = abs(float(loss - truth)) / float(truth)
                found.append([str(options), str(dtype), ends, off, worst, traffic])
    if rank == 0:
        (path / "found.json").write_text(json.dumps(found))
    dist.barrier()
    leave_ranks()  # destroy_process_group alone can abort the process at its end


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_loss_and_gradients_equal_those_of_one_rank(ranks, tmp_path):
    torch.multiprocessing.spawn(rank_main, (ranks, tmp_path), ranks)
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(found) == 2 * len(SPLITS[ranks]) + 5  # every split in two precisions; one split of five variants
    for options, dtype, ends, off, worst, traffic in found:
        limit = 3e-2 if "mixed" in options else 1e-5 if dtype == "torch.float32" else 1e-12
        assert off < limit, (options, dtype, ends)
        assert worst < limit, (options, dtype, ends)
        # Bytes of each reduction, for any split and (first) three times as many points: two blocks, two samples,
        # four heads of eight latents of four numbers. A backward that recomputes a block also merges its latents
        # again. Mixed precision sends float32 too.
        number = (4 if dtype == "torch.float32" else 8) * (2 * 4 * 8)
        forward, backward = [number, number * (4 + 1)], [number * 4]
        again = forward if "recompute" in options else []
        assert traffic == [2 * forward + 2 * (again + backward)] * (2 if ends == SPLITS[ranks][0] else 1)


def test_explicit_gradient_equals_autograd(monkeypatch):
    monkeypatch.setattr(sharded, "TILE", 7)
    torch.manual_seed(0)
    shapes = (4, 8, 6), (2, 4, 40, 6), (2, 4, 40, 6)
    q, k, v = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    mask, dz = torch.rand(2, 40) > 0.4, torch.randn(2, 4, 8, 6, dtype=torch.float64)
    wanted = torch.autograd.grad(encode(q, k, v, scale=0.7, mask=mask, backend="reference"), (q, k, v), dz)
    whole = encode_partial(q, k, v, scale=0.7, mask=mask, backend="reference")
    with torch.no_grad():
        got = encode_gradients(q, k, v, mask, 0.7, whole, dz)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_denominator_stays_in_float32_under_autocast():
    """Rounded to bfloat16, the logarithm would be wrong by several per mille."""
    torch.manual_seed(0)
    q, k, v = torch.randn(4, 8, 6), torch.randn(2, 4, 40, 6).bfloat16(), torch.randn(2, 4, 40, 6).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        part = encode_partial(q, k, v)
    assert part.log_sum_BHM.dtype is torch.float32
    torch.testing.assert_close(part.log_sum_BHM, scores(q, k, scale=1.0).logsumexp(-1))
