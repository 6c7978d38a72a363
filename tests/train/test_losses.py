"""Losses compared with their definitions."""

import numpy as np
import pytest
import torch

from flare.train.losses import gradient_l2, relative_l2


def test_relative_l2_is_per_sample_over_points_and_components():
    u, v = torch.randn(3, 7, 2).double(), torch.randn(3, 7, 2).double()
    want = [[np.linalg.norm(a - b) / np.linalg.norm(b)] for a, b in zip(u.numpy(), v.numpy(), strict=True)]
    np.testing.assert_allclose(relative_l2(u, v), want, rtol=1e-14)


def test_fields_have_separate_errors_independent_of_units():
    u, v = torch.randn(2, 9, 3).double(), torch.randn(2, 9, 3).double()
    errors = relative_l2(u, v, widths=[2, 1])
    torch.testing.assert_close(errors[:, 0], relative_l2(u[..., :2], v[..., :2])[:, 0])
    torch.testing.assert_close(errors[:, 1], relative_l2(u[..., 2:], v[..., 2:])[:, 0])
    units = torch.tensor([1e6, 1e6, 1e-3]).double()
    torch.testing.assert_close(relative_l2(units * u, units * v, widths=[2, 1]), errors)


def test_padding_does_not_contribute_even_if_it_is_nan():
    u, v = torch.randn(2, 7, 1), torch.randn(2, 7, 1)
    mask = torch.arange(7) < torch.tensor([4, 7])[:, None]
    padded = u.masked_fill(~mask[..., None], torch.nan).requires_grad_()
    errors = relative_l2(padded, v, mask)
    torch.testing.assert_close(errors[0], relative_l2(u[:1, :4], v[:1, :4])[0])
    errors.sum().backward()
    assert torch.isfinite(padded.grad).all()


def test_shifting_the_target_changes_the_metric():
    u, v = torch.randn(2, 7, 1), torch.randn(2, 7, 1)
    assert not torch.allclose(relative_l2(u, v), relative_l2(u, v + 5.0))


def test_the_gradient_term_follows_the_published_recipe():
    rows, columns = 6, 9
    u, v = (np.random.default_rng(i).normal(size=(rows, columns)) for i in (0, 1))
    inner = np.zeros_like(u)
    inner[1:-1, 1:-1] = u[1:-1, 1:-1]

    def derivative(f, axis):
        g = np.pad(f, 1)
        return (np.roll(g, -1, axis) - np.roll(g, 1, axis))[1:-1, 1:-1] / (2 / 85)

    def rel(a, b):
        return np.linalg.norm(a - b) / np.linalg.norm(b)

    want = sum(rel(derivative(inner, axis), derivative(v, axis)) for axis in (0, 1))
    flat = [torch.from_numpy(f.reshape(1, -1, 1)) for f in (u, v)]
    assert gradient_l2(*flat, (rows, columns)).item() == pytest.approx(want, rel=1e-12)
