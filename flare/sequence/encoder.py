"""Sequence classifier around any attention: embedding, blocks, pooling and head, for one document or two."""

# B batch, N tokens, L longest sequence, C channels, H heads

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from flare.mixer import check_mask
from flare.models.flare import NORMS, ResMLP
from flare.models.layers import at_least, check_heads, small_normal, transformer_mlp
from flare.sequence.attention import ATTENTIONS, LearnedPositions, PerformerAttention, Rotation, SinusoidalPositions
from flare.utils.errors import ConfigError, suggest_name

POSITIONS = {"learned": LearnedPositions, "sinusoidal": SinusoidalPositions, "rotary": Rotation}
POOLS = ("mean", "max", "cls")
HEADS = ("linear", "mlp")


class SequenceBlock(nn.Module):
    """x ← x + attention(norm(x)),  x ← x + FFN(norm(x))."""

    def __init__(self, attention: nn.Module, ffn: nn.Module, norms: tuple[nn.Module, nn.Module]) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = norms
        self.attention, self.ffn = attention, ffn

    def forward(self, x_BNC: Tensor, mask: Tensor | None) -> Tensor:
        x_BNC = x_BNC + self.attention(self.attention_norm(x_BNC), mask)
        return x_BNC + self.ffn(self.ffn_norm(x_BNC))


class SequenceEncoder(nn.Module):
    """Encoder of token sequences with a classification head.

    Positions are added before every block. Padding is neither attended to nor pooled. With two documents, `forward`
    takes both end to end, [B, 2 N].

    Args:
        vocabulary: Number of token ids.
        labels: Number of outputs; 1 for two classes.
        length: Longest sequence (of one document).
        attention: One of `ATTENTIONS`.
        channels: C.
        blocks: Number of blocks.
        heads: Number of heads, which must divide C.
        mlp_ratio: Hidden width of the FFN in units of C, 4 by default. Not for FLARE.
        ffn_depth: Inner layers of FLARE's residual MLP, 3 by default. Only for FLARE.
        norm: `layer` or `rms`.
        position: `learned`, `sinusoidal` or `rotary`.
        pool: `mean` or `max` over the real tokens, or a `cls` token in front.
        head: `linear`, or `mlp` with one hidden layer.
        documents: 1, or 2 for pairs, which share the encoder and are classified together.
        dropout: Default of the four dropouts that follow.
        embedding_dropout: Dropout of token embeddings.
        projection_dropout: Dropout of attention outputs.
        ffn_dropout: Dropout of hidden features of the FFN (FLARE's residual MLP has none).
        head_dropout: Dropout of pooled features.
        attention_dropout: Dropout of attention weights, if the attention has them.
        **options: Further arguments of the attention.
    """

    def __init__(
        self,
        vocabulary: int,
        labels: int,
        length: int,
        *,
        attention: str = "flare",
        channels: int = 128,
        blocks: int = 4,
        heads: int = 8,
        mlp_ratio: int | None = None,
        ffn_depth: int | None = None,
        norm: str = "layer",
        position: str = "learned",
        pool: str = "mean",
        head: str = "linear",
        documents: int = 1,
        dropout: float = 0.0,
        embedding_dropout: float | None = None,
        projection_dropout: float | None = None,
        ffn_dropout: float | None = None,
        head_dropout: float | None = None,
        attention_dropout: float = 0.0,
        **options: object,
    ) -> None:
        super().__init__()
        choices = {"position": POSITIONS, "pool": POOLS, "head": HEADS, "norm": NORMS}
        for (name, known), value in zip(choices.items(), (position, pool, head, norm), strict=True):
            if value not in known:
                raise ConfigError(f"{name}={value!r} is unknown; {suggest_name(value, known)}")
        at_least(1, vocabulary=vocabulary, labels=labels, length=length, channels=channels, blocks=blocks, heads=heads)
        if (mlp_ratio if attention == "flare" else ffn_depth) is not None:
            given = "mlp_ratio" if attention == "flare" else "ffn_depth"
            raise ConfigError(f"{given} does not apply to attention={attention!r}; leave it out")
        embedding_dropout, projection_dropout, ffn_dropout, head_dropout = (
            dropout if own is None else own
            for own in (embedding_dropout, projection_dropout, ffn_dropout, head_dropout)
        )
        if documents not in (1, 2):
            raise ConfigError(f"documents={documents}; use 1, or 2 for pairs")
        check_heads(channels, heads)
        self.length, self.pool, self.documents = length, pool, documents
        positions = length + (pool == "cls")
        self.embedding = nn.Embedding(vocabulary, channels)
        self.embedding_dropout = nn.Dropout(embedding_dropout)
        self.cls = nn.Parameter(0.02 * torch.randn(channels)) if pool == "cls" else None
        self.positions = POSITIONS[position](positions, channels) if position != "rotary" else None
        rotate = Rotation(positions, channels // heads) if position == "rotary" else None
        make = attention_class(attention)
        if attention == "flare":
            make = partial(make, norm=norm)

        dropouts = {"attention_dropout": attention_dropout, "dropout": projection_dropout}

        def block() -> SequenceBlock:
            mixer = make(channels, heads, length=positions, rotate=rotate, **dropouts, **options)
            norms = NORMS[norm](channels), NORMS[norm](channels)
            return SequenceBlock(mixer, _ffn(attention, channels, mlp_ratio, ffn_depth, ffn_dropout), norms)

        self.blocks = nn.ModuleList(block() for _ in range(blocks))
        wide = documents * channels
        self.norm = nn.Identity() if pool == "cls" else NORMS[norm](channels)
        self.head = nn.Sequential()
        self.head.add_module("dropout", nn.Dropout(head_dropout))
        self.head.add_module("norm", nn.Identity() if pool == "cls" else NORMS[norm](wide))
        if head == "mlp":
            self.head.add_module("hidden", nn.Linear(wide, wide))
            self.head.add_module("activation", nn.GELU())
        self.head.add_module("out", nn.Linear(wide, labels))
        self.apply(small_normal)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Classify sequences.

        Args:
            ids: Token ids, [B, N], or [B, 2 N] for pairs.
            mask: Boolean, same shape, True at real tokens.

        Returns:
            Logits, [B, labels].
        """
        if ids.ndim != 2 or ids.shape[1] % self.documents:
            wanted = "[B, N]" if self.documents == 1 else "[B, 2 N], two documents end to end"
            raise ConfigError(f"ids have shape {list(ids.shape)}; this model takes {wanted}")
        check_mask(mask, *ids.shape)
        batch = len(ids)
        ids = ids.reshape(batch * self.documents, -1)
        mask = None if mask is None else mask.reshape(ids.shape)
        if ids.shape[1] > self.length:
            raise ConfigError(f"this model takes at most {self.length} tokens, not {ids.shape[1]}")
        pooled = self.encode(ids, mask)
        return self.head(pooled.reshape(batch, -1))

    def redraw(self, step: int, seed: int = 0) -> None:
        """Redraw Performer features when due. To be called after every training step, counted from 1.

        The features depend only on the seed and the step, so that all ranks draw the same ones.
        """
        # torch uses 32 bits of a seed; these depend on both numbers.
        generator = torch.Generator().manual_seed(int(np.random.SeedSequence([seed, step]).generate_state(1)[0]))
        for block in self.blocks:
            if isinstance(block.attention, PerformerAttention):
                block.attention.redraw(step, generator)

    def encode(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return pooled features, [B, N] -> [B, C]."""
        x_BNC = self.embedding_dropout(self.embedding(ids))
        if self.cls is not None:
            x_BNC = torch.cat([self.cls.expand(len(ids), 1, -1), x_BNC], dim=1)
            mask = None if mask is None else nn.functional.pad(mask, (1, 0), value=True)
        for block in self.blocks:
            if self.positions is not None:
                x_BNC = x_BNC + self.positions(x_BNC.shape[1])
            x_BNC = block(x_BNC, mask)
        return self._pool(self.norm(x_BNC), mask)

    def _pool(self, x_BNC: Tensor, mask: Tensor | None) -> Tensor:
        if self.pool == "cls":
            return x_BNC[:, 0]
        if self.pool == "max":
            if mask is None:
                return x_BNC.amax(1)
            greatest = x_BNC.masked_fill(~mask[..., None], -torch.inf).amax(1)
            return greatest.masked_fill(~mask.any(1, keepdim=True), 0.0)  # for a document without tokens
        if mask is None:
            return x_BNC.mean(1)
        return x_BNC.masked_fill(~mask[..., None], 0.0).sum(1) / mask.sum(1, keepdim=True).clamp_min(1)


def attention_class(name: str) -> Callable[..., nn.Module]:
    """Return an attention by name."""
    if name not in ATTENTIONS:
        raise ConfigError(f"attention={name!r} is unknown; {suggest_name(name, ATTENTIONS)}")
    return ATTENTIONS[name]


def attention_options(name: str) -> set[str]:
    """Return the arguments of an attention beyond those that the encoder passes to all."""
    common = {"length", "rotate", "attention_dropout", "dropout", "norm"}
    parameters = inspect.signature(ATTENTIONS[name]).parameters.values()
    return {p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in common}


def options_of(attention: str) -> set[str]:
    """Return the settings of the encoder that only this attention has."""
    attention_class(attention)
    return attention_options(attention) | {"ffn_depth" if attention == "flare" else "mlp_ratio"}


def _ffn(attention: str, channels: int, ratio: int | None, depth: int | None, dropout: float) -> nn.Module:
    if attention == "flare":
        return ResMLP(channels, channels, channels, 3 if depth is None else depth)
    ratio = 4 if ratio is None else ratio
    if attention == "norm":
        return transformer_mlp(channels, ratio, "tanh")
    first, activation, last = transformer_mlp(channels, ratio)
    return nn.Sequential(first, activation, nn.Dropout(dropout), last)
