"""Performer: softmax attention by positive random features (FAVOR+), linear in the number of tokens."""

# B batch, N tokens, H heads, D head width, F random features

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from flare.errors import ConfigError
from flare.sequence.attention import SMALL, Attention, sums_first, without_padding

FEATURES = ("orthogonal", "simple")


class PerformerAttention(Attention):
    """exp(q·k / √D) ≈ f(q)·f(k) with f(x) = exp(Ω x − |x|² / 2) / √F: an unbiased estimate with error like 1/√F.

    Args:
        features: F.
        kind: `orthogonal` as by Performer's authors: rows of Ω orthogonal in blocks of D, with the lengths of Gaussian
            vectors, and drawn anew while training. `simple` as by the authors of FLARE: unit rows, drawn once.
        redraw_every: training steps between new draws; 0 for never.
    """

    omega: Tensor
    age: Tensor

    def __init__(
        self,
        channels: int,
        heads: int,
        *,
        features: int = 256,
        kind: str = "orthogonal",
        redraw_every: int = 1000,
        **common: Any,
    ) -> None:
        super().__init__(channels, heads, **common)
        if kind not in FEATURES:
            raise ConfigError(f"unknown kind of features {kind!r}; use one of {', '.join(FEATURES)}")
        self.kind, self.redraw_every = kind, redraw_every if kind == "orthogonal" else 0
        width = channels // heads
        draw = orthogonal_rows if kind == "orthogonal" else unit_rows
        # Saved with the weights: a model that was trained with these features answers with them.
        self.register_buffer("omega", torch.stack([draw(features, width) for _ in range(heads)]))
        self.register_buffer("age", torch.zeros((), dtype=torch.long))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        if self.training and self.redraw_every:
            self._grow_older()
        with torch.autocast(q.device.type, enabled=False):  # exponentials of sums want float32
            wide = torch.float64 if q.dtype == torch.float64 else torch.float32
            q, k, v = (t.to(wide) for t in (q, k, v))
            return sums_first(self.positive(q, True), without_padding(self.positive(k, False, mask), mask), v)

    def positive(self, x: Tensor, is_query: bool, mask: Tensor | None = None) -> Tensor:
        """f(x). Any factor common to all keys, or to all features of one query, cancels in the quotient."""
        x = x * x.shape[-1] ** -0.25
        scores = x @ self.omega.to(x.dtype).transpose(-1, -2)
        scores = scores - x.square().sum(-1, keepdim=True) / 2
        own = scores.amax(-1, keepdim=True)
        if not is_query and self.kind == "orthogonal":
            own = own if mask is None else own.masked_fill(~mask[:, None, :, None], -torch.inf)
            own = own.amax(-2, keepdim=True)  # one shift for all keys, or they would change places
            own = torch.where(own > -torch.inf, own, 0.0)  # a sequence of padding alone
        return ((scores - own).exp() + SMALL) / self.omega.shape[1] ** 0.5

    @torch.no_grad()
    def _grow_older(self) -> None:
        self.age += 1
        if int(self.age) % self.redraw_every == 0:
            count, width = self.omega.shape[1:]
            self.omega.copy_(torch.stack([orthogonal_rows(count, width) for _ in self.omega]))


def unit_rows(count: int, width: int) -> Tensor:
    return nn.functional.normalize(torch.randn(count, width), dim=-1)


def orthogonal_rows(count: int, width: int) -> Tensor:
    """Gaussian vectors, except that every `width` of them are orthogonal: a better estimate from as many."""
    blocks = [_rotation(width) for _ in range(-(-count // width))]
    return torch.cat(blocks)[:count] * torch.randn(count, width).norm(dim=-1, keepdim=True)


def _rotation(width: int) -> Tensor:
    """Any orthogonal matrix is as likely. QR alone favours some signs, which would bias the features."""
    q, r = torch.linalg.qr(torch.randn(width, width))
    return (q * r.diagonal().sign()).t()
