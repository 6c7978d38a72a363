"""SOAP: its bases become eigenbases, and a public implementation takes the same path."""

import torch
from pytorch_optimizer import SOAP as PublicSOAP

from flare.train.optimizers.soap import SOAP, refresh_basis
from tests.train.optimizers.paths import follow


def make(params):
    return SOAP([{"params": params, "matrices": True}], lr=0.01)


def test_refreshed_bases_become_the_eigenbasis_of_a_fixed_covariance():
    rng = torch.Generator().manual_seed(0)
    vectors = torch.linalg.qr(torch.randn(2, 12, 12, generator=rng, dtype=torch.float64))[0]
    values = 2.0 ** -torch.arange(12, dtype=torch.float64)
    covariance = vectors @ torch.diag_embed(values.expand(2, 12)) @ vectors.mT
    basis = torch.linalg.qr(torch.randn(2, 12, 12, generator=rng, dtype=torch.float64))[0]
    square = torch.zeros(2, 12, 3, dtype=torch.float64)
    for _ in range(60):
        basis, square = refresh_basis(covariance, basis, square)
    overlap = (basis.mT @ torch.linalg.eigh(covariance)[1].flip(-1)).abs()
    torch.testing.assert_close(overlap, torch.eye(12, dtype=torch.float64).expand(2, 12, 12), rtol=0, atol=1e-9)


def test_second_moments_follow_their_directions_when_bases_are_sorted():
    covariance = torch.diag(torch.tensor([1.0, 3.0, 2.0]))[None]
    basis, square = refresh_basis(covariance, torch.eye(3)[None], torch.tensor([[10.0], [30.0], [20.0]])[None])
    assert square[0, :, 0].tolist() == [30.0, 20.0, 10.0]
    assert basis[0].abs().argmax(0).tolist() == [1, 2, 0]


def test_bases_stay_orthonormal():
    params = [torch.nn.Parameter(torch.randn(20, 16)) for _ in range(3)]
    optimizer = make(params)
    for _ in range(100):
        for p in params:
            p.grad = torch.randn(20, 1) @ torch.randn(1, 16)
        optimizer.step()
    for p in params:
        for basis in (optimizer.state[p]["rows_basis"], optimizer.state[p]["columns_basis"]):
            torch.testing.assert_close(basis.mT @ basis, torch.eye(len(basis)), rtol=0, atol=1e-5)


def test_it_takes_the_path_of_a_public_implementation():
    """Square matrices: the eigenbasis of a first gradient of lower rank is not unique."""
    shapes = [(16, 16), (20, 20)]
    ours = follow(make, shapes, torch.float64)
    theirs = follow(
        lambda p: PublicSOAP(p, lr=0.01, betas=(0.95, 0.95), weight_decay=0.0, precondition_frequency=10),
        shapes,
        torch.float64,
    )
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-5)
