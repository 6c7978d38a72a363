"""The paper's model: its parameter counts, golden outputs, and the properties the architecture promises."""

import pytest
import torch
from torch import nn

from flare import FLARE, FLAREBlock, FLAREModel, ResMLP, build_model
from flare.models import count_parameters, model_options
from flare.models.flare import recompute_blocks
from flare.utils.errors import ConfigError
from tests.models import golden

SMALL = {"channels": 32, "blocks": 2, "heads": 4, "latents": 8}


@pytest.mark.parametrize(
    ("dataset", "in_dim", "heads", "latents", "count"),
    [
        ("elasticity", 2, 8, 64, 592_641),
        ("darcy", 3, 16, 256, 691_009),
        ("airfoil", 2, 8, 256, 690_945),
        ("pipe", 2, 8, 128, 625_409),
        ("drivaerml", 3, 8, 256, 691_009),
        ("lpbf", 3, 8, 128, 625_473),
        ("lpbf as printed in the paper's table", 3, 16, 256, 691_009),
    ],
)
def test_parameter_count_is_the_papers(dataset, in_dim, heads, latents, count):
    assert count_parameters(FLAREModel(in_dim, 1, heads=heads, latents=latents)) == count


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
    ("options", "first_three", "total", "norm"),
    [
        ({}, (-5.07557698, -4.74472272, 3.32216590), -30.33044115, 22.29005868),
        ({"shared_latents": True}, (-1.98519418, -1.87033045, 3.53516999), 13.03239783, 14.51463174),
        (
            {"latent_blocks": 1, "latent_gelu": "none"},
            (-5.23795600, -4.83257374, 3.23644815),
            -34.31101371,
            22.41540807,
        ),
        ({"kv_depth": 0, "ffn_depth": 1}, (-5.93475831, -5.74266277, 5.55094312), -16.81880972, 29.16708198),
    ],
)
@pytest.mark.parametrize("backend", ["sdpa", "reference"])
def test_golden_values(options, first_three, total, norm, backend):
    model = golden.fill(FLAREModel(2, 1, **SMALL, **options, backend=backend))
    y = model(golden.points()).detach().flatten()
    got = torch.cat([y[:3], y.sum()[None], y.norm()[None]])
    torch.testing.assert_close(got, torch.tensor([*first_three, total, norm], dtype=torch.float64), rtol=0, atol=1e-7)


@pytest.mark.parametrize("options", [{}, {"qk_norm": True, "norm": "rms"}, {"latent_blocks": 1}, {"scale": None}])
def test_permuting_points_permutes_the_output(options):
    model = FLAREModel(3, 2, **SMALL, **options).double()
    x, order = torch.randn(2, 50, 3).double(), torch.randperm(50)
    torch.testing.assert_close(model(x[:, order]), model(x)[:, order], rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"qk_norm": True}, {"shared_latents": True}, {"latent_blocks": 1}])
def test_a_padded_batch_equals_its_members_one_by_one(options):
    model = FLAREModel(3, 2, **SMALL, **options).double()
    members = [torch.randn(n, 3).double() for n in (7, 50, 23)]
    x = nn.utils.rnn.pad_sequence(members, batch_first=True, padding_value=3.0)
    mask = torch.arange(50) < torch.tensor([7, 50, 23])[:, None]
    together = model(x, mask)
    for y, member in zip(together, members, strict=True):
        torch.testing.assert_close(y[: len(member)], model(member[None])[0], rtol=0, atol=1e-12)


def layers(mlp):
    """Apply the definition by hand, layer by layer, to compare with."""
    act = nn.functional.gelu
    return mlp.layers, lambda layer, h: act(layer(h), approximate="tanh")


def test_resmlp_follows_its_definition():
    mlp = ResMLP(6, 6, 6, 2).double()
    (first, one, two, last), bent = layers(mlp)
    x = torch.randn(4, 6).double()
    h = x + bent(first, x)
    h = h + bent(one, h)
    h = h + bent(two, h)
    torch.testing.assert_close(mlp(x), h + last(h), rtol=0, atol=1e-14)


def test_resmlp_of_depth_zero_is_first_and_last():
    mlp = ResMLP(3, 6, 2, 0).double()
    (first, last), bent = layers(mlp)
    x = torch.randn(4, 3).double()
    torch.testing.assert_close(mlp(x), last(bent(first, x)), rtol=0, atol=1e-14)


def test_resmlp_of_depth_minus_one_is_a_linear_with_a_skip_only_where_it_fits():
    x = torch.randn(4, 5).double()
    square, wide, plain = ResMLP(5, 9, 5, -1), ResMLP(5, 9, 3, -1), ResMLP(5, 9, 5, -1, skip_in=False)
    for mlp, skip in [(square, x), (wide, 0), (plain, 0)]:
        mlp.double()
        torch.testing.assert_close(mlp(x), mlp.layers[0](x) + skip, rtol=0, atol=1e-14)
    assert count_parameters(square) == 5 * 5 + 5


def test_scale_is_one_by_default_and_may_be_one_over_root_d():
    assert FLARE(64, 8, 16).scale == 1.0
    assert FLARE(64, 8, 16, scale=None).scale == pytest.approx(8**-0.5)


@pytest.mark.parametrize(("norm", "per_norm"), [("layer", 2), ("rms", 1)])
def test_qk_norm_normalises_queries_and_keys(norm, per_norm):
    plain, normed = FLARE(32, 4, 8, norm=norm), FLARE(32, 4, 8, norm=norm, qk_norm=True)
    assert count_parameters(normed) - count_parameters(plain) == 2 * per_norm * 8
    q, k = normed.queries_and_keys(100 * torch.randn(1, 20, 32))
    torch.testing.assert_close(q.square().mean(-1), torch.ones(4, 8), rtol=0, atol=0.01)
    torch.testing.assert_close(k.square().mean(-1), torch.ones(1, 4, 20), rtol=0, atol=0.01)


def test_initialisation():
    model = FLAREModel(2, 1)
    weights = torch.cat([m.weight.detach().flatten() for m in model.modules() if isinstance(m, nn.Linear)])
    latents = torch.cat([block.mixer.latents.detach().flatten() for block in model.blocks])
    assert weights.std() == pytest.approx(0.02, rel=0.02)
    assert latents.std() == pytest.approx(0.1, rel=0.02)
    assert all((m.bias == 0).all() for m in model.modules() if isinstance(m, nn.Linear))


def test_every_backend_has_the_same_state_dict_and_answer():
    a, b = (FLAREModel(2, 1, **SMALL, backend=name) for name in ("sdpa", "reference"))
    b.load_state_dict(a.state_dict())
    x = torch.randn(1, 30, 2)
    torch.testing.assert_close(a(x), b(x), rtol=0, atol=1e-5)


def test_latents_are_a_parameter_of_shape_heads_latents_width():
    assert FLAREBlock(32, 4, 8).mixer.latents.shape == (4, 8, 8)
    assert FLAREBlock(32, 4, 8, shared_latents=True).mixer.latents.shape == (1, 8, 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channels": 64, "heads": 5}, r"heads=5 does not divide channels=64; use one of \[1, 2, 4"),
        ({"channel": 64}, "no option 'channel'; did you mean 'channels'"),
        ({"heads": "8"}, "heads='8' should be int"),
        ({"qk_norm": 1}, "qk_norm=1 should be bool"),
        ({"norm": "layr"}, "unknown norm 'layr'; did you mean 'layer'"),
        ({"latents": 0}, "at least 1"),
        ({"kv_depth": -2}, "depth is -2"),
        ({"shared_latents": True, "latent_blocks": 1}, "choose one"),
        ({"backend": "cuda"}, "unknown mixer backend"),
    ],
)
def test_impossible_sizes_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        build_model("flare", 2, 1, **options)


def test_features_of_the_wrong_shape_are_named():
    for shape in ((50, 32), (1, 50, 16)):
        with pytest.raises(ConfigError, match=r"this layer takes \[B, N, 32\]"):
            FLARE(32, 4, 8)(torch.randn(*shape))


def test_unknown_model_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'flare'"):
        build_model("flair", 2, 1)


def test_build_model_has_the_papers_defaults():
    assert model_options("flare")["latents"] == 64
    assert count_parameters(build_model("flare", 2, 1)) == 592_641


@pytest.mark.parametrize("backend", ["auto", "sdpa"])
def test_blocks_computed_anew_keep_less_and_give_the_same_gradients(backend):
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
    with pytest.raises(ConfigError, match="Linear cannot compute its blocks anew"):
        recompute_blocks(torch.nn.Linear(2, 2))


def test_the_exact_gelu_is_near_the_tanh_form_and_not_the_same():
    x = torch.linspace(-4, 4, 101)
    tanh, exact = (ResMLP(1, 2, 1, 0, activation=name).activation(x) for name in ("gelu", "exact-gelu"))
    assert 0 < (tanh - exact).abs().max() < 1e-3
