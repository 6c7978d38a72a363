"""The baselines: parameter counts of the paper, golden outputs, and properties of each architecture."""

import pytest
import torch
from torch import nn

from flare import build_model
from flare.models import count_parameters
from flare.models.baselines.grid import distances
from flare.models.baselines.transolver_pp import gumbel_like
from flare.train.presets import preset_path, read_yaml
from flare.train.recipes import with_model
from flare.utils.errors import ConfigError
from tests.models import golden
from tests.models.test_registry import SMALL

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


PAIRS = [(name, preset) for name in COUNTS for preset, count in zip(IN_DIM, COUNTS[name], strict=True) if count]


@pytest.mark.parametrize(("name", "preset"), PAIRS)
def test_recipes_have_the_parameter_counts_of_the_paper(name, preset):
    count = COUNTS[name][list(IN_DIM).index(preset)]
    model = with_model(read_yaml(preset_path(preset)), preset, name)["model"]
    if model.get("grid") == "dataset":
        model["grid"] = (5, 5)  # the count does not depend on the grid
    assert count_parameters(build_model(model.pop("name"), IN_DIM[preset], 1, **model)) == count


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
    assert count_parameters(build_model(name, in_dim, 1, **options)) == count


EXACT_GELU, SELF = {"heads": 2, "gelu": "none"}, {"latents": 8, "flavour": "self"}
PUBLISHED = {"grid": (5, 5), "unified_pos": True, "published": True}


@pytest.mark.parametrize(
    ("name", "points", "options", "values"),
    [
        ("transformer", 24, {"heads": 2}, (-5.12384811, -4.37090994, 4.69166790, -1.07537646, 27.92882882)),
        ("transformer", 24, EXACT_GELU, (-5.12437348, -4.37128414, 4.69102859, -1.08406359, 27.92894308)),
        ("perceiver", 24, SELF, (0.48279246, 0.44575377, 0.66937517, 14.15707127, 2.94277405)),
        ("perceiver", 24, {"latents": 8}, (3.34444596, 3.51985535, 5.85909045, 97.92381986, 20.96674604)),
        ("transolver", 24, {"slices": 8}, (0.55963261, 0.83985516, 0.10659541, 12.65907552, 3.46123577)),
        ("transolver", 25, {"slices": 8, "grid": (5, 5)}, (0.98571028, 0.88837687, 0.78294391, 8.32361991, 2.56085706)),
        ("transolver++", 24, {"slices": 8}, (0.80565016, 1.14699473, -0.02420890, 14.92520401, 4.39058001)),
        ("lno", 24, {"modes": 8}, (0.39415890, 0.30959975, 2.70364285, 57.35996915, 17.60728920)),
        ("gnot", 24, {}, (-2.32796858, -2.45980153, -2.12301275, -51.18809534, 10.53756360)),
        ("gnot", 25, PUBLISHED, (-3.22444859, -3.19431249, -3.05186653, -76.88766639, 15.39772063)),
    ],
)
def test_golden_values(name, points, options, values):
    model = golden.fill(build_model(name, 2, 1, **{"channels": 32, "blocks": 2, "heads": 4, **options}))
    got = golden.digest(model(golden.points(points)))
    tolerance = 1e-6 if options.get("unified_pos") else 1e-7  # the distances are computed in float32
    torch.testing.assert_close(got, torch.tensor(values, dtype=torch.float64), rtol=0, atol=tolerance)


def small(name, in_dim=3, out_dim=2, **options):
    sizes = {"channels": 16, "blocks": 2, "heads": 4, **SMALL[name], **options}
    torch.manual_seed(1)
    model = build_model(name, in_dim, out_dim, **sizes).double().eval()
    for p in model.parameters():  # fresh weights give almost uniform attention
        p.data.add_(0.3 * torch.randn_like(p))
    return model


VARIANTS = [
    *({"name": name} for name in SMALL),
    {"name": "perceiver", "flavour": "self"},
    {"name": "flare", "qk_norm": True},
    {"name": "flare", "qk_norm": True, "norm": "rms"},
    {"name": "flare", "latent_blocks": 1},
    {"name": "flare", "shared_latents": True},
    {"name": "flare", "scale": None},
]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_permuting_points_permutes_the_output(options):
    model = small(**options)
    x, order = torch.randn(2, 50, 3).double(), torch.randperm(50)
    torch.testing.assert_close(model(x[:, order]), model(x)[:, order], rtol=0, atol=1e-10)


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_padded_batch_equals_its_samples(options):
    model = small(**options)
    members = [torch.randn(n, 3).double() for n in (7, 50, 23)]
    x = nn.utils.rnn.pad_sequence(members, batch_first=True, padding_value=3.0)
    mask = torch.arange(50) < torch.tensor([7, 50, 23])[:, None]
    together = model(x, mask)
    for y, member in zip(together, members, strict=True):
        torch.testing.assert_close(y[: len(member)], model(member[None])[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", SMALL)
def test_sample_without_real_points_does_not_affect_others(name):
    model, x = small(name), torch.randn(2, 20, 3).double()
    mask = torch.tensor([[True], [False]]).expand(2, 20)
    y = model(x, mask)
    torch.testing.assert_close(y[0], model(x[:1])[0], rtol=0, atol=1e-10)
    y[mask].square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("mask", [torch.ones(2, 20), torch.ones(2, 1, dtype=torch.bool)])
def test_mask_of_wrong_type_or_shape_is_refused(name, mask):
    with pytest.raises(ConfigError, match="mask"):
        small(name)(torch.randn(2, 20, 3).double(), mask)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize(("option", "value"), [("blocks", 0), ("heads", 7)])
def test_sizes_are_checked_by_every_model(name, option, value):
    with pytest.raises(ConfigError, match=f"{option}={value}"):
        small(name, **{option: value})


@pytest.mark.parametrize(
    ("name", "options", "fact"),
    [
        ("transformer", {"gelu": "erf"}, "'erf'"),
        ("perceiver", {"flavour": "both"}, "'both'"),
        ("transolver", {"grid": "dataset"}, "'dataset'"),
        ("transolver", {"grid": (5,)}, r"\(5,\)"),
        ("transolver", {"grid": (5, 1)}, r"\(5, 1\)"),
        ("transolver", {"unified_pos": True, "grid": (5, 5), "in_dim": 2}, "in_dim=2"),
        ("transolver++", {"noise": "some"}, "'some'"),
        ("lno", {"trunk_dim": 9}, "trunk_dim=9"),
        ("lno", {"mlp_depth": -1}, "mlp_depth=-1"),
        ("gnot", {"published": True}, "unified_pos"),
        ("gnot", {"unified_pos": True}, "grid"),
        ("gnot", {"unified_pos": True, "grid": (5, 5), "in_dim": 1}, "in_dim=1"),
    ],
)
def test_invalid_options_are_refused(name, options, fact):
    with pytest.raises(ConfigError, match=fact):
        small(name, **options)


def test_gnot_does_not_overflow_in_half_precision():
    sizes = {"channels": 4, "blocks": 1, "heads": 4, "experts": 1}  # heads of one channel, whose keys are 1
    model = build_model("gnot", 3, 1, **sizes)
    with torch.autocast("cpu", torch.float16):
        assert model(torch.randn(1, 70_000, 3)).isfinite().all()


def test_half_precision_noise_has_the_tails_of_float32():
    noise = gumbel_like(torch.zeros(100_000, dtype=torch.float16))
    assert noise.isfinite().all()
    assert noise.max() > 9


@pytest.mark.parametrize("name", SMALL)
def test_every_trainable_parameter_has_a_gradient(name):
    """Distributed training waits for the gradients of all of them."""
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
def test_grid_models_train_and_refuse_other_points(options):
    model = small(grid=(5, 4), **options).train()
    x = torch.randn(2, 20, 3).double()
    model(x).square().sum().backward()
    assert [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None] == []
    torch.testing.assert_close(model(x, torch.ones(2, 20, dtype=torch.bool)), model(x))
    with pytest.raises(ConfigError, match="21"):
        model(torch.randn(2, 21, 3).double())
    with pytest.raises(ConfigError, match="mask"):
        model(x, torch.arange(20).expand(2, -1) < 19)


def test_published_gnot_reads_inputs_only_through_the_gates():
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


def test_noise_setting_of_transolver_pp():
    x = torch.randn(1, 30, 3).double()
    for noise, training, evaluating in (("training", True, False), ("always", True, True), ("never", False, False)):
        model = small("transolver++", noise=noise)
        assert (not torch.equal(model(x), model(x))) == evaluating
        model.train()
        assert (not torch.equal(model(x), model(x))) == training
