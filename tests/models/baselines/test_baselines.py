"""FLARE's peers: the paper's parameter counts, golden outputs, and what each architecture promises."""

import pytest
import torch
from torch import nn

from flare import build_model
from flare.models import MODELS, count_parameters
from flare.models.baselines.grid import distances
from flare.models.baselines.transolver_pp import gumbel_like
from flare.train.presets import preset_path, read_yaml
from flare.train.recipes import recipe_names, with_model
from flare.utils.errors import ConfigError
from tests.models import golden

IN_DIM = {"elasticity": 2, "darcy": 3, "airfoil": 2, "pipe": 2, "drivaerml": 3, "lpbf": 3}
COUNTS = {
    "flare": (592_641, 691_009, 690_945, 625_409, 691_009, 625_473),
    "transformer": (660_161, 660_241, 660_161, 660_161, 660_241, 660_241),
    "perceiver": (1_866_881, 1_867_009, 1_866_881, 1_866_881, 1_867_009, 1_867_009),
    "gnot": (4_870_553, 4_902_553, 4_902_809, 4_902_809, 4_873_113, 4_873_113),
    "lno": (1_831_745, 762_241, 761_985, 761_985, 762_241, 762_241),
    "transolver": (713_665, 713_921, 713_665, 713_665, 713_921, 713_921),
    "transolver-conv": (None, 2_826_945, 2_810_817, 2_810_817, None, None),
    "transolver++": (591_305, 591_561, 591_305, 591_305, 591_561, 591_561),
}
GRID = {"grid": (85, 85)}


def peer(name, in_dim, **options):
    return build_model(name, in_dim, 1, **options)


def test_there_is_a_count_for_every_recipe():
    assert set(COUNTS) == set(recipe_names())


PAIRS = [(name, preset) for name in COUNTS for preset, count in zip(IN_DIM, COUNTS[name], strict=True) if count]


@pytest.mark.parametrize(("name", "preset"), PAIRS, ids="-".join)
def test_the_recipes_have_the_papers_parameter_counts(name, preset):
    count = COUNTS[name][list(IN_DIM).index(preset)]
    model = with_model(read_yaml(preset_path(preset)), preset, name)["model"]
    if model.get("grid") == "dataset":
        model["grid"] = (5, 5)  # the count is that of any grid
    assert count_parameters(peer(model.pop("name"), IN_DIM[preset], **model)) == count


@pytest.mark.parametrize(
    ("name", "in_dim", "options", "count"),
    [
        ("transformer", 2, {"qkv_bias": True}, 662_081),
        ("transformer", 3, {"qkv_bias": True}, 662_161),
        ("perceiver", 2, {"flavour": "self"}, 1_864_833),
        ("perceiver", 3, {"flavour": "self"}, 1_864_961),
        ("perceiver", 2, {"flavour": "self", "latents": 1024}, 1_930_369),
        ("perceiver", 2, {"latents": 1024}, 1_932_417),
        ("gnot", 3, {"unified_pos": True, "published": True, **GRID}, 4_904_345),
        ("gnot", 2, {"unified_pos": True, "published": True, **GRID}, 4_902_297),
        ("lno", 2, {"blocks": 8}, 1_291_905),
        ("lno", 3, {"trunk_dim": 2}, 762_113),
        ("transolver", 3, GRID, 2_811_073),
        ("transolver", 2, {"mlp_ratio": 2, **GRID}, 3_073_985),
    ],
)
def test_parameter_counts_of_other_revisions(name, in_dim, options, count):
    assert count_parameters(peer(name, in_dim, **options)) == count


@pytest.mark.parametrize(
    ("name", "points", "options", "values"),
    [
        ("transformer", 24, {"heads": 2}, (-5.12384811, -4.37090994, 4.69166790, -1.07537646, 27.92882882)),
        (
            "transformer",
            24,
            {"heads": 2, "gelu": "none"},
            (-5.12437348, -4.37128414, 4.69102859, -1.08406359, 27.92894308),
        ),
        (
            "perceiver",
            24,
            {"latents": 8, "flavour": "self"},
            (0.48279246, 0.44575377, 0.66937517, 14.15707127, 2.94277405),
        ),
        ("perceiver", 24, {"latents": 8}, (3.34444596, 3.51985535, 5.85909045, 97.92381986, 20.96674604)),
        ("transolver", 24, {"slices": 8}, (0.55963261, 0.83985516, 0.10659541, 12.65907552, 3.46123577)),
        (
            "transolver",
            25,
            {"slices": 8, "grid": (5, 5)},
            (0.98571028, 0.88837687, 0.78294391, 8.32361991, 2.56085706),
        ),
        ("transolver++", 24, {"slices": 8}, (0.80565016, 1.14699473, -0.02420890, 14.92520401, 4.39058001)),
        ("lno", 24, {"modes": 8}, (0.39415890, 0.30959975, 2.70364285, 57.35996915, 17.60728920)),
        ("gnot", 24, {}, (-2.32796858, -2.45980153, -2.12301275, -51.18809534, 10.53756360)),
        (
            "gnot",
            25,
            {"grid": (5, 5), "unified_pos": True, "published": True},
            (-3.22444859, -3.19431249, -3.05186653, -76.88766639, 15.39772063),
        ),
    ],
)
def test_golden_values(name, points, options, values):
    model = golden.fill(peer(name, 2, **{"channels": 32, "blocks": 2, "heads": 4, **options}))
    y = model(golden.points(points)).detach().flatten()
    got = torch.cat([y[:3], y.sum()[None], y.norm()[None]])
    tolerance = 1e-6 if options.get("unified_pos") else 1e-7  # those distances were made in float32
    torch.testing.assert_close(got, torch.tensor(values, dtype=torch.float64), rtol=0, atol=tolerance)


SMALL = {
    "flare": {"latents": 8},
    "transformer": {},
    "perceiver": {"latents": 8},
    "transolver": {"slices": 8},
    "transolver++": {"slices": 8},
    "lno": {"modes": 8},
    "gnot": {},
}


def small(name, in_dim=3, out_dim=2, **options):
    sizes = {"channels": 16, "blocks": 2, "heads": 4, **SMALL[name], **options}
    torch.manual_seed(1)
    model = build_model(name, in_dim, out_dim, **sizes).double().eval()
    for p in model.parameters():  # livelier than at the start, where attention hardly looks
        p.data.add_(0.3 * torch.randn_like(p))
    return model


def test_every_model_is_here():
    assert set(SMALL) == set(MODELS)


@pytest.mark.parametrize("name", SMALL)
def test_permuting_points_permutes_the_output(name):
    model = small(name)
    x, order = torch.randn(2, 50, 3).double(), torch.randperm(50)
    torch.testing.assert_close(model(x[:, order]), model(x)[:, order], rtol=0, atol=1e-10)


@pytest.mark.parametrize("options", [{"name": name} for name in SMALL] + [{"name": "perceiver", "flavour": "self"}])
def test_a_padded_batch_equals_its_members_one_by_one(options):
    model = small(**options)
    members = [torch.randn(n, 3).double() for n in (7, 50, 23)]
    x = nn.utils.rnn.pad_sequence(members, batch_first=True, padding_value=3.0)
    mask = torch.arange(50) < torch.tensor([7, 50, 23])[:, None]
    together = model(x, mask)
    for y, member in zip(together, members, strict=True):
        torch.testing.assert_close(y[: len(member)], model(member[None])[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", SMALL)
def test_a_sample_of_padding_alone_spoils_nothing(name):
    model, x = small(name), torch.randn(2, 20, 3).double()
    mask = torch.tensor([[True], [False]]).expand(2, 20)
    y = model(x, mask)
    torch.testing.assert_close(y[0], model(x[:1])[0], rtol=0, atol=1e-10)
    y[mask].square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize(
    "mask",
    [
        torch.ones(2, 20),
        torch.ones(1, 20, dtype=torch.bool),
        torch.ones(2, 1, dtype=torch.bool),
        torch.ones(2, 20).int(),
    ],
)
def test_a_mask_of_another_kind_or_size_is_refused(name, mask):
    with pytest.raises(ConfigError, match="mask"):
        small(name)(torch.randn(2, 20, 3).double(), mask)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("transformer", {"blocks": 0}, "blocks=0"),
        ("perceiver", {"latents": 0}, "latents=0"),
        ("perceiver", {"flavour": "both"}, "unknown flavour"),
        ("transolver", {"slices": -1}, "slices=-1"),
        ("transolver", {"grid": 5}, "grid=5 should be two numbers"),
        ("transolver", {"grid": "dataset"}, "should be two numbers"),
        ("transolver", {"unified_pos": True}, "give grid="),
        ("transolver", {"unified_pos": True, "grid": (5, 5), "in_dim": 2}, "nothing else to read"),
        ("transolver++", {"noise": "some"}, "unknown noise"),
        ("transolver++", {"mlp_ratio": 0}, "mlp_ratio=0"),
        ("lno", {"modes": 0}, "modes=0"),
        ("lno", {"trunk_dim": 9}, "only 3 features"),
        ("lno", {"mlp_depth": -1}, "mlp_depth=-1"),
        ("gnot", {"experts": 0}, "experts=0"),
        ("gnot", {"published": True}, "settings of unified_pos"),
        ("gnot", {"unified_pos": True, "grid": (5, 5), "in_dim": 1}, "the first two features"),
        ("flare", {"ffn_ratio": 0}, "ffn_ratio=0"),
    ],
)
def test_impossible_sizes_are_refused(name, options, message):
    with pytest.raises(ConfigError, match=message):
        small(name, **options)


def test_a_standard_mlp_in_flare_is_a_transformers():
    model = small("flare", ffn="standard", activation="silu")
    first, activation, last = model.blocks[0].ffn
    assert (first.out_features, last.out_features) == (64, 16)
    assert isinstance(activation, nn.SiLU)
    x = torch.randn(1, 30, 3).double()
    h = model.lift(x)
    for block in model.blocks:
        h = h + block.mixer(block.mixer_norm(h))
        h = h + block.ffn(block.ffn_norm(h))
    torch.testing.assert_close(model(x), model.head(model.head_norm(h)))
    assert count_parameters(build_model("flare", 2, 1, ffn="standard")) == 690_945


def test_a_wide_residual_mlp_in_flare_has_no_outer_skips():
    ffn = small("flare", ffn_ratio=2).blocks[0].ffn
    assert (ffn.skip_in, ffn.skip_out) == (False, False)
    assert [layer.out_features for layer in ffn.layers] == [32, 32, 32, 32, 16]


def test_gnot_sums_over_many_points_in_half_precision():
    model = build_model("gnot", 3, 1, channels=16, blocks=1, heads=2)
    with torch.autocast("cpu", torch.float16):
        assert model(torch.randn(1, 100_000, 3)).isfinite().all()


def test_half_precision_noise_is_as_fine_as_that_of_float32():
    noise = gumbel_like(torch.zeros(100_000, dtype=torch.float16))
    assert noise.isfinite().all()
    assert noise.max() > 9


@pytest.mark.parametrize("name", SMALL)
def test_points_see_each_other(name):
    model, x = small(name), torch.randn(1, 50, 3).double()
    other = x.clone()
    other[0, 7] += 1.0
    assert (model(other) - model(x))[0, torch.arange(50) != 7].abs().max() > 1e-6


@pytest.mark.parametrize("name", SMALL)
def test_every_parameter_that_can_learn_has_a_gradient(name):
    """Distributed training waits for all of them."""
    model = small(name).train()
    model(torch.randn(1, 20, 3).double()).square().sum().backward()
    assert [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None] == []


@pytest.mark.parametrize(
    "options",
    [
        {"name": "transolver"},
        {"name": "transolver", "unified_pos": True},
        {"name": "gnot", "unified_pos": True},
        {"name": "gnot", "unified_pos": True, "published": True},
    ],
)
def test_grid_models_learn_and_refuse_other_points(options):
    model = small(grid=(5, 4), **options).train()
    x = torch.randn(2, 20, 3).double()
    model(x).square().sum().backward()
    assert [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None] == []
    torch.testing.assert_close(model(x, torch.ones(2, 20, dtype=torch.bool)), model(x))
    with pytest.raises(ConfigError, match="grid of 5 x 4 points, not for 21"):
        model(torch.randn(2, 21, 3).double())
    with pytest.raises(ConfigError, match="cannot leave points out"):
        model(x, torch.arange(20).expand(2, -1) < 19)


def test_a_coefficient_is_kept_beside_unified_positions():
    x = torch.randn(1, 20, 3).double()
    other = torch.cat([x[..., :2], x[..., 2:] + 1], dim=-1)
    for name in ("transolver", "gnot"):
        model = small(name, grid=(5, 4), unified_pos=True)
        assert (model(other) - model(x)).abs().max() > 1e-3, name


def test_in_the_published_gnot_inputs_matter_through_the_gates_alone():
    x = torch.randn(1, 20, 3).double()
    model = small("gnot", grid=(5, 4), unified_pos=True, published=True)
    assert (model(x + 1) - model(x)).abs().max() > 1e-6
    for block in model.blocks:
        block.gate[0].weight.data.zero_()
    torch.testing.assert_close(model(x + 1), model(x), rtol=0, atol=0)


def test_distances_to_the_reference_grid():
    d = distances((5, 3))
    assert d.shape == (15, 64)
    assert d[0, 0] == 0
    assert d[-1, -1] == 0
    assert d[0, -1] == pytest.approx(2**0.5)
    assert d[1, 0] == pytest.approx(0.5), "columns vary fastest"


def test_transolver_pp_is_noisy_only_where_it_should_be():
    x = torch.randn(1, 30, 3).double()
    for noise, training, evaluating in (("training", True, False), ("always", True, True), ("never", False, False)):
        model = small("transolver++", noise=noise)
        assert (not torch.equal(model(x), model(x))) == evaluating
        model.train()
        assert (not torch.equal(model(x), model(x))) == training


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("perceiver", {"flavour": "both"}, "unknown flavour 'both'"),
        ("transolver", {"unified_pos": True}, "give grid="),
        ("transolver", {"grid": (5,)}, "two numbers of points"),
        ("transolver", {"grid": (5, 1)}, "each at least 2"),
        ("transolver++", {"noise": "sometimes"}, "unknown noise"),
        ("gnot", {"unified_pos": True}, "give grid="),
        ("transformer", {"heads": 7}, "heads=7 does not divide channels=80"),
        ("lno", {"heads": 7}, "heads=7 does not divide"),
        ("gnot", {"heads": 7}, "heads=7 does not divide"),
        ("transformer", {"gelu": "erf"}, "unknown gelu 'erf'"),
        ("flare", {"ffn": "mlp"}, "unknown ffn 'mlp'"),
    ],
)
def test_impossible_settings_are_refused(name, options, message):
    with pytest.raises(ConfigError, match=message):
        peer(name, 2, **options)
