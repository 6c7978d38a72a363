"""The FLARE model: parameter counts of the ablations, golden outputs, and properties of the architecture."""

import math

import pytest
import torch
from torch import nn

from flare import FLARE, FLAREModel, ResMLP, build_model
from flare.models import count_parameters
from flare.models.flare import FourierFeatures, recompute_blocks
from flare.utils.errors import ConfigError
from tests.models import golden

SMALL = {"channels": 32, "blocks": 2, "heads": 4, "latents": 8}
LATENT_BLOCK = {"latent_blocks": 1, "latent_gelu": "none"}


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"blocks": 8, "shared_latents": True}, 563_969),
        ({"blocks": 1, "shared_latents": True}, 92_673),
        ({"blocks": 8, "latent_blocks": 8}, 3_779_329),
        ({"blocks": 1, "latent_blocks": 1}, 146_049),
        *(({"kv_depth": depth}, 392_961 + 66_560 * depth) for depth in range(6)),
        *(({"ffn_depth": depth}, 492_801 + 33_280 * depth) for depth in range(6)),
    ],
)
def test_parameter_counts_of_the_ablations(options, count):
    assert count_parameters(FLAREModel(2, 1, **options)) == count


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ({}, (-5.07557698, -4.74472272, 3.32216590, -30.33044115, 22.29005868)),
        ({"shared_latents": True}, (-1.98519418, -1.87033045, 3.53516999, 13.03239783, 14.51463174)),
        (LATENT_BLOCK, (-5.23795600, -4.83257374, 3.23644815, -34.31101371, 22.41540807)),
        ({"kv_depth": 0, "ffn_depth": 1}, (-5.93475831, -5.74266277, 5.55094312, -16.81880972, 29.16708198)),
    ],
)
@pytest.mark.parametrize("backend", ["sdpa", "reference"])
def test_golden_values(options, values, backend):
    model = golden.fill(FLAREModel(2, 1, **SMALL, **options, backend=backend))
    got = golden.digest(model(golden.points()))
    torch.testing.assert_close(got, torch.tensor(values, dtype=torch.float64), rtol=0, atol=1e-7)


def test_resmlp_follows_its_definition():
    mlp = ResMLP(6, 6, 6, 2).double()
    first, one, two, last = mlp.layers
    x, gelu = torch.randn(4, 6).double(), nn.GELU("tanh")
    h = x + gelu(first(x))
    h = h + gelu(one(h))
    h = h + gelu(two(h))
    torch.testing.assert_close(mlp(x), h + last(h), rtol=0, atol=1e-14)
    narrow = ResMLP(6, 3, 2, 0).double()
    torch.testing.assert_close(narrow(x), narrow.layers[1](gelu(narrow.layers[0](x))), rtol=0, atol=1e-14)


def test_resmlp_of_depth_minus_one_is_a_linear_layer():
    x = torch.randn(4, 5).double()
    square, wide, plain = ResMLP(5, 9, 5, -1), ResMLP(5, 9, 3, -1), ResMLP(5, 9, 5, -1, skip_in=False)
    for mlp, skip in [(square, x), (wide, 0), (plain, 0)]:
        mlp.double()
        torch.testing.assert_close(mlp(x), mlp.layers[0](x) + skip, rtol=0, atol=1e-14)
    assert count_parameters(square) == 5 * 5 + 5


@pytest.mark.parametrize(("norm", "per_norm"), [("layer", 2), ("rms", 1)])
def test_qk_norm_normalizes_queries_and_keys(norm, per_norm):
    plain, normed = FLARE(32, 4, 8, norm=norm), FLARE(32, 4, 8, norm=norm, qk_norm=True)
    assert count_parameters(normed) - count_parameters(plain) == 2 * per_norm * 8
    q, k = normed.queries_and_keys(100 * torch.randn(1, 20, 32))
    torch.testing.assert_close(q.square().mean(-1), torch.ones(4, 8), rtol=0, atol=0.01)
    torch.testing.assert_close(k.square().mean(-1), torch.ones(1, 4, 20), rtol=0, atol=0.01)


def test_initialization():
    model = FLAREModel(2, 1)
    weights = torch.cat([m.weight.detach().flatten() for m in model.modules() if isinstance(m, nn.Linear)])
    latents = torch.cat([block.mixer.latents.detach().flatten() for block in model.blocks])
    assert weights.std() == pytest.approx(0.02, rel=0.02)
    assert latents.std() == pytest.approx(0.1, rel=0.02)
    assert all((m.bias == 0).all() for m in model.modules() if isinstance(m, nn.Linear))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channels": 64, "heads": 5}, "heads=5"),
        ({"channel": 64}, "'channels'"),
        ({"heads": "8"}, "heads='8'"),
        ({"qk_norm": 1}, "qk_norm=1"),
        ({"norm": "layr"}, "'layer'"),
        ({"latents": 0}, "latents=0"),
        ({"kv_depth": -2}, "depth=-2"),
        ({"shared_latents": True, "latent_blocks": 1}, "latent_blocks"),
        ({"backend": "cuda"}, "'cuda'"),
        ({"fourier": -1}, "fourier=-1"),
        ({"ffn_ratio": 0}, "ffn_ratio=0"),
        ({"ffn": "mlp"}, "'mlp'"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        build_model("flare", 2, 1, **options)


@pytest.mark.parametrize("backend", ["auto", "sdpa"])
def test_recomputed_blocks_keep_less_and_give_the_same_gradients(backend):
    torch.manual_seed(0)
    model = FLAREModel(3, 1, channels=16, blocks=3, heads=2, latents=4, backend=backend)
    x, kept = torch.randn(2, 50, 3), []

    def gradients():
        kept.append(0)

        def keep(tensor):
            kept[-1] += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = model(x).square().sum()
        return torch.autograd.grad(loss, list(model.parameters()))

    plain = gradients()
    recompute_blocks(model)
    for a, b in zip(plain, gradients(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
    assert kept[1] < kept[0] / 2
    with pytest.raises(ConfigError, match="Linear"):
        recompute_blocks(torch.nn.Linear(2, 2))


def test_standard_ffn_is_the_mlp_of_a_transformer():
    model = FLAREModel(3, 2, **SMALL, ffn="standard", activation="silu").double()
    first, activation, last = model.blocks[0].ffn
    assert (first.out_features, last.out_features) == (128, 32)
    assert isinstance(activation, nn.SiLU)
    assert count_parameters(build_model("flare", 2, 1, ffn="standard")) == 690_945


def test_wide_residual_ffn_has_no_outer_skips():
    ffn = FLAREModel(3, 2, **SMALL, ffn_ratio=2).blocks[0].ffn
    assert (ffn.skip_in, ffn.skip_out) == (False, False)
    assert [layer.out_features for layer in ffn.layers] == [64, 64, 64, 64, 32]


# ---- Fourier features -----------------------------------------------------------------------------------------------


def test_fourier_features_follow_their_definition():
    x = torch.randn(2, 5, 3)
    waves = [wave(math.pi / 2 * 2**k * x) for wave in (torch.sin, torch.cos) for k in range(3)]
    features = FourierFeatures(3)
    torch.testing.assert_close(features(x), torch.cat([x, *waves], dim=-1))
    assert features(x).shape[-1] == features.width(3)
    assert count_parameters(FLAREModel(2, 1, fourier=4)) == 592_641 + 64 * 2 * 2 * 4
