"""Spectra equal those of dense float64 matrices and have the properties of a stochastic low-rank operator."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flare import FLARE, FLAREModel
from flare.models.spectra import (
    Spectra,
    effective_rank,
    eigenpairs,
    eigenvalues,
    factor,
    flare_layers,
    model_eigenvectors,
    model_spectra,
    numerical_rank,
)
from flare.utils.errors import ConfigError, DataError

M, N, D = 16, 200, 8
SMALL = {"channels": 16, "blocks": 3, "heads": 4, "latents": 6}


def queries_and_keys(spread, points=N):
    """Return q and k whose scores have standard deviation `spread`; at 300, exp overflows float64."""
    q, k = torch.randn(M, D).double(), torch.randn(points, D).double()
    return spread * q / (q @ k.T).std(), k


def dense(q, k, scale=1.0):
    """Compute the mixing matrix W."""
    s = scale * q @ k.T
    return s.T.softmax(1) @ s.softmax(1)


def dense_eigenvalues(w, count):
    return torch.from_numpy(np.sort(np.linalg.eigvals(w.numpy()).real)[::-1][:count].copy())


def lively(**options):
    """Return a model whose mixing is far from uniform, unlike that of fresh weights."""
    model = FLAREModel(3, 1, **SMALL, **options)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=1.0 if name.endswith("latents") else 0.15)
    return model


@pytest.mark.parametrize("spread", [0.1, 1, 5, 30, 300])
@pytest.mark.parametrize("scale", [1.0, 8**-0.5])
def test_eigenvalues_equal_those_of_the_dense_matrix(spread, scale):
    q, k = queries_and_keys(spread)
    w = dense(q, k, scale)
    got = eigenvalues(q, k, scale=scale)
    torch.testing.assert_close(got, dense_eigenvalues(w, M), rtol=0, atol=1e-10)
    torch.testing.assert_close(got.sum(), w.trace(), rtol=0, atol=1e-10)
    assert got[0] == pytest.approx(1, abs=1e-12)
    assert got.min() >= 0
    assert got.max() <= 1 + 1e-12
    assert (got.diff() <= 0).all()


@pytest.mark.parametrize("spread", [0.1, 1, 5, 10])
@pytest.mark.parametrize("scale", [1.0, 8**-0.5])
def test_eigenvectors_satisfy_the_dense_eigenproblem(spread, scale):
    q, k = queries_and_keys(spread)
    w = dense(q, k, scale)
    values, vectors = eigenpairs(q, k, scale=scale)
    assert len(values) >= 12
    torch.testing.assert_close(w @ vectors, values * vectors, rtol=0, atol=1e-10)
    torch.testing.assert_close(values, eigenvalues(q, k, scale=scale)[: len(values)], rtol=0, atol=1e-12)
    gap = values[0] - values[1]
    torch.testing.assert_close(vectors[:, 0], torch.ones(N).double(), rtol=0, atol=1e-13 / gap.item())
    torch.testing.assert_close(vectors.square().mean(0), torch.ones(len(values)).double(), rtol=0, atol=1e-12)
    assert (vectors.amax(0) >= -vectors.amin(0)).all()


def test_modes_with_zero_eigenvalue_are_dropped():
    q, k = queries_and_keys(1)
    values, _ = eigenpairs(q[:1].repeat(M, 1), k)
    assert values.tolist() == pytest.approx([1.0])


def test_padding_does_not_change_the_spectrum():
    q, k = queries_and_keys(5)
    mask = torch.rand(N) < 0.6
    assert factor(q, k, mask=mask)[:, ~mask].abs().max() == 0
    torch.testing.assert_close(eigenvalues(q, k, mask=mask), eigenvalues(q, k[mask]), rtol=0, atol=1e-13)
    (values, vectors), (bare_values, bare_vectors) = eigenpairs(q, k, mask=mask), eigenpairs(q, k[mask])
    torch.testing.assert_close(values, bare_values, rtol=0, atol=1e-12)
    torch.testing.assert_close(vectors[mask], bare_vectors, rtol=0, atol=1e-9)
    assert vectors[~mask].abs().max() == 0


def test_sample_without_real_points_is_refused():
    with pytest.raises(DataError, match="200"):
        eigenvalues(*queries_and_keys(1), mask=torch.zeros(N, dtype=torch.bool))


def test_fewer_points_than_latents():
    q, k = queries_and_keys(5, points=7)
    expected = torch.cat([dense_eigenvalues(dense(q, k), 7), torch.zeros(M - 7).double()])
    torch.testing.assert_close(eigenvalues(q, k), expected, rtol=0, atol=1e-10)
    assert len(eigenpairs(q, k)[0]) == 7


@pytest.mark.parametrize("m", [1, 7, 64])
def test_ranks(m):
    uniform, alone = torch.full((3, m), 0.3).double(), torch.eye(m)[:1].double().expand(3, m)
    torch.testing.assert_close(effective_rank(uniform), torch.full((3,), float(m)).double())
    torch.testing.assert_close(effective_rank(alone), torch.ones(3).double())
    assert numerical_rank(alone).tolist() == [1, 1, 1]
    assert numerical_rank(10.0 ** -torch.arange(12)).item() == 7
    assert numerical_rank(10.0 ** -torch.arange(12), threshold=1e-3).item() == 3


@pytest.fixture(params=[{}, {"scale": None}, {"shared_latents": True}, {"qk_norm": True}], ids=str)
def model(request):
    return lively(**request.param)


def layers_by_hand(model, x, mask=None):
    """Yield each layer and its input."""
    h = model.lift(x)
    for block in model.blocks:
        yield block.mixer, block.mixer_norm(h)
        h = block(h, mask)


def dense_spectra(model, x):
    """Compute the eigenvalues [samples, L, H, M] from dense matrices, without padding."""
    rows = []
    for layer, y in layers_by_hand(model, x):
        q, k = layer.queries_and_keys(y)
        w = [[dense(q[h % len(q)], k[b, h], layer.scale) for h in range(layer.heads)] for b in range(len(x))]
        rows.append(torch.stack([torch.stack([dense_eigenvalues(m, q.shape[1]) for m in heads]) for heads in w]))
    return torch.stack(rows, 1)


@torch.no_grad()
def test_model_spectra_equal_the_dense_computation_layer_by_layer(model):
    x = torch.randn(5, 40, 3)
    got = model_spectra(model, [(x[:2], None), (x[2:], None)])
    expected = dense_spectra(model.double(), x.double())
    assert expected[..., 1].max() > 0.5  # the mixing is more than a mean
    torch.testing.assert_close(got.eigenvalues, expected.mean(0), rtol=0, atol=1e-10)
    torch.testing.assert_close(got.spread, expected.std(0, correction=0), rtol=0, atol=1e-10)
    assert got.samples == 5
    torch.testing.assert_close(got.effective_rank, effective_rank(expected.mean(0)), rtol=0, atol=1e-8)
    assert torch.equal(got.numerical_rank, (expected.mean(0) > 2**-23).sum(-1))


def test_padded_batch_has_the_spectra_of_its_samples(model):
    members = [torch.randn(n, 3) for n in (9, 50, 23)]
    x = nn.utils.rnn.pad_sequence(members, batch_first=True, padding_value=3.0)
    mask = torch.arange(50) < torch.tensor([9, 50, 23])[:, None]
    padded, bare = model_spectra(model, [(x, mask)]), model_spectra(model, [(m[None], None) for m in members])
    torch.testing.assert_close(padded.eigenvalues, bare.eigenvalues, rtol=0, atol=1e-12)
    torch.testing.assert_close(padded.spread, bare.spread, rtol=0, atol=1e-12)


@torch.no_grad()
def test_model_eigenvectors_satisfy_the_dense_eigenproblem(model):
    x = torch.randn(1, 40, 3)
    got = model_eigenvectors(model, x, count=3)
    for (values, vectors), (layer, y) in zip(got, layers_by_hand(model.double(), x.double()), strict=True):
        q, k = layer.queries_and_keys(y)
        assert values.shape == (4, 3)
        for h in range(layer.heads):
            w = dense(q[h % len(q)], k[0, h], layer.scale)
            torch.testing.assert_close(w @ vectors[h], values[h] * vectors[h], rtol=0, atol=1e-10)


def test_model_is_not_changed():
    model = lively(backend="sdpa").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model_spectra(model, [(torch.randn(1, 20, 3), None)])
    model_eigenvectors(model, torch.randn(1, 20, 3))
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert {value.dtype for value in model.state_dict().values()} == {torch.float32}
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert {layer.backend for layer in flare_layers(model)} == {"sdpa"}
    assert not any(layer._forward_pre_hooks for layer in flare_layers(model))


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor that an operation returns."""

    entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        self.entries = max(self.entries, *sizes, 0)
        return out


def test_no_tensor_of_size_n_by_n():
    model, x = FLAREModel(3, 1, channels=16, blocks=1, heads=2, latents=8), torch.randn(1, 20_000, 3)
    with LargestTensor() as largest:
        model_spectra(model, [(x, None)])
        model_eigenvectors(model, x)
    assert largest.entries <= 16 * 20_000  # an N × N matrix would have 400 million entries, 3.2 GB


def test_spectra_round_trip_through_a_file(tmp_path):
    spectra = Spectra(torch.rand(2, 3, 4).double(), torch.rand(2, 3, 4).double(), 7)
    spectra.save(tmp_path / "spectra.npz")
    with np.load(tmp_path / "spectra.npz") as again:
        np.testing.assert_array_equal(again["eigenvalues"], spectra.eigenvalues)
        np.testing.assert_array_equal(again["spread"], spectra.spread)
        assert again["samples"] == 7
    assert [path.name for path in tmp_path.iterdir()] == ["spectra.npz"]


def test_invalid_models_and_inputs_are_refused():
    model, latent, x = FLAREModel(3, 1, **SMALL), FLAREModel(3, 1, **SMALL, latent_blocks=1), torch.randn(2, 10, 3)
    for error, fact, call in (
        (ConfigError, "Linear", lambda: flare_layers(nn.Linear(3, 3))),
        (ConfigError, r"blocks\.0\.mixer has latent_blocks=1", lambda: model_spectra(latent, [(x, None)])),
        (ConfigError, r"\(2, 4\), \(2, 8\)", lambda: model_spectra(nn.Sequential(FLARE(4, 2, 4), FLARE(4, 2, 8)), [])),
        (DataError, "inputs", lambda: model_spectra(model, [])),
        (DataError, r"\[2, 10, 3\]", lambda: model_eigenvectors(model, x)),
    ):
        with pytest.raises(error, match=fact):
            call()


@pytest.mark.parametrize("spread", [100.0, 1000.0])
def test_unresolved_eigenvectors_are_dropped(spread):
    """At such scores float64 resolves only some modes; those returned satisfy W v = λ v."""
    for _ in range(5):
        q, k = queries_and_keys(spread)
        values, vectors = eigenpairs(q, k)
        residual = dense(q, k) @ vectors - values * vectors
        assert (residual.square().mean(0).sqrt() < 1e-5).all()
        assert len(values) == vectors.shape[1] <= M
