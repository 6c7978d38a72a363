"""Performer: softmax attention by positive random features (FAVOR+), linear in the number of tokens."""

# B batch, N tokens, H heads, D head width, F random features

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from flare.models.checks import at_least
from flare.sequence.attention import SMALL, Attention, sums_first, without_padding
from flare.utils.errors import ConfigError

FEATURES = ("orthogonal", "simple")


class PerformerAttention(Attention):
    """exp(q·k / √D) ≈ f(q)·f(k) with f(x) = exp(Ω x − |x|² / 2) / √F: an unbiased estimate with error like 1/√F.

    Args:
        features: F.
        kind: `orthogonal` as by Performer's authors: rows of Ω orthogonal in blocks of D, with the lengths of Gaussian
            vectors, and drawn anew while training. `simple` as by the authors of FLARE: unit rows, drawn once.
        redraw_every: steps between new draws, by default 1000; 0 for never. See `redraw`.
    """

    sums = True
    omega: Tensor

    def __init__(
        self,
        channels: int,
        heads: int,
        *,
        features: int = 256,
        kind: str = "orthogonal",
        redraw_every: int | None = None,
        **common: Any,
    ) -> None:
        super().__init__(channels, heads, **common)
        if kind not in FEATURES:
            raise ConfigError(f"unknown kind of features {kind!r}; use one of {', '.join(FEATURES)}")
        if kind == "simple" and redraw_every:
            raise ConfigError("simple features are drawn once; leave redraw_every out, or use kind='orthogonal'")
        at_least(1, features=features)
        self.kind = kind
        self.redraw_every = (1000 if kind == "orthogonal" else 0) if redraw_every is None else redraw_every
        width = channels // heads
        draw = orthogonal_rows if kind == "orthogonal" else unit_rows
        # Saved with the weights: a model that was trained with these features answers with them.
        self.register_buffer("omega", torch.stack([draw(features, width) for _ in range(heads)]))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return sums_first(self.positive(q, True), without_padding(self.positive(k, False, mask), mask), v)

    def positive(self, x: Tensor, is_query: bool, mask: Tensor | None = None) -> Tensor:
        """f(x). Any factor common to all keys, or to all features of one query, cancels in the quotient."""
        x = x * x.shape[-1] ** -0.25
        scores = x @ self.omega.to(x.dtype).transpose(-1, -2)
        scores = scores - x.square().sum(-1, keepdim=True) / 2
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, :, None], torch.finfo(scores.dtype).min)
        # A shift that cancels needs no gradient, which would only cost time: so Performer's authors.
        if is_query:
            own = scores.detach().amax(-1, keepdim=True)
        elif self.kind == "orthogonal":
            own = scores.detach().amax((-2, -1), keepdim=True)  # one for all keys, or they would change places
        else:
            own = scores.amax(-1, keepdim=True)  # of each key its own, which does not cancel
        return ((scores - own).exp() + SMALL) / self.omega.shape[1] ** 0.5

    def redraw(self, step: int, generator: torch.Generator | None = None) -> None:
        """To be called after every training step, counted from 1: new features every `redraw_every` of them.

        Not by itself in the forward: that may run twice in a step, and both must see the same features.
        """
        if self.redraw_every and step % self.redraw_every == 0:
            count, width = self.omega.shape[1:]
            drawn = [orthogonal_rows(count, width, generator) for _ in self.omega]
            self.omega = torch.stack(drawn).to(self.omega)


def unit_rows(count: int, width: int) -> Tensor:
    return nn.functional.normalize(torch.randn(count, width), dim=-1)


def orthogonal_rows(count: int, width: int, generator: torch.Generator | None = None) -> Tensor:
    """Gaussian vectors, except that every `width` of them are orthogonal: a better estimate from as many."""
    blocks = [_rotation(width, generator) for _ in range(-(-count // width))]
    return torch.cat(blocks)[:count] * torch.randn(count, width, generator=generator).norm(dim=-1, keepdim=True)


def _rotation(width: int, generator: torch.Generator | None) -> Tensor:
    """Any orthogonal matrix is as likely. QR alone favours some signs, which would bias the features."""
    q, r = torch.linalg.qr(torch.randn(width, width, generator=generator))
    return (q * r.diagonal().sign()).t()
