"""Spectra pictures: the right curve of the right head in the right panel."""

import numpy as np
import pytest
import torch

from flare.models.spectra import FP32_EPSILON, Spectra, effective_rank
from flare.report.spectra import eigenvector_figure, spectra_figure
from flare.utils.errors import ConfigError

LATENTS, HEADS = 12, 3


def some_spectra(blocks):
    rates = torch.rand(blocks, HEADS, 1).double() + 0.2
    values = (-rates * torch.arange(LATENTS)).exp()
    return Spectra(values, torch.zeros_like(values), 1)


@pytest.mark.parametrize(
    ("total", "asked", "shown"),
    [(8, None, [1, 5, 8]), (1, None, [1]), (2, None, [1, 2]), (3, None, [1, 2, 3]), (8, [8, 2], [8, 2])],
)
def test_one_line_per_head_and_panel_with_its_eigenvalues(total, asked, shown):
    spectra = some_spectra(total)
    figure = spectra_figure(spectra, asked)
    figure.draw_without_rendering()
    assert len(figure.axes) == len(shown)
    for axes, block in zip(figure.axes, shown, strict=True):
        *curves, last, epsilon = axes.lines
        assert len(curves) == HEADS
        for head, curve in enumerate(curves):
            np.testing.assert_array_equal(curve.get_xdata(), np.arange(LATENTS))
            np.testing.assert_array_equal(curve.get_ydata(), spectra.eigenvalues[block - 1, head])
        assert set(last.get_xdata()) == {LATENTS - 1}
        assert set(epsilon.get_ydata()) == {FP32_EPSILON}
        assert axes.get_yscale() == "log"
        assert axes.get_ylim() == (1e-8, 2)
        ranks = effective_rank(spectra.eigenvalues[block - 1])
        assert axes.get_title() == f"Block {block}\neffective rank {ranks.min():.1f} to {ranks.max():.1f}"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["1", "2", "3"]


def test_eigenvalues_of_zero_are_drawn():
    figure = spectra_figure(Spectra(torch.eye(4)[:1].expand(1, 2, 4), torch.zeros(1, 2, 4), 1))
    figure.draw_without_rendering()
    assert figure.axes[0].get_title().endswith("effective rank 1.0")


@pytest.mark.parametrize("blocks", [[0], [9], []])
def test_blocks_the_model_lacks_are_refused(blocks):
    with pytest.raises(ConfigError, match="1 to 8"):
        spectra_figure(some_spectra(8), blocks)


@pytest.mark.parametrize(("dimension", "count"), [(2, 6), (2, 1), (3, 4)])
def test_eigenvectors_are_fields_symmetric_about_zero_with_their_eigenvalue(dimension, count):
    points, vectors = np.random.default_rng(0).random((50, dimension)), torch.randn(50, count)
    values = [0.9**i for i in range(count)]
    figure = eigenvector_figure(points, values, vectors, block=2, head=3)
    figure.draw_without_rendering()
    assert "block 2, head 3" in figure.get_suptitle()
    assert len(figure.axes) == count
    for i, axes in enumerate(figure.axes):
        low, high = axes.collections[0].get_clim()
        assert low == -high
        assert high == pytest.approx(vectors[:, i].abs().max().item())
        np.testing.assert_allclose(np.sort(axes.collections[0].get_array()), np.sort(vectors[:, i]))
        assert axes.get_title().endswith(f"= {values[i]:.3g}")
