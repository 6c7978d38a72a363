"""A sequence classifier around any attention: embedding, blocks, pooling, head; for one document or for two."""

# B batch, N tokens, L longest sequence, C channels, H heads

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from importlib import import_module

import numpy as np
import torch
from torch import Tensor, nn

from flare.models.attention import check_heads, transformer_mlp
from flare.models.checks import at_least, check_mask
from flare.models.flare import NORMS, ResMLP
from flare.models.initialise import small_normal
from flare.sequence.performer import PerformerAttention
from flare.sequence.positions import LearnedPositions, Rotation, SinusoidalPositions
from flare.utils.errors import ConfigError, nearest

ATTENTIONS: dict[str, str] = {
    "vanilla": "flare.sequence.attention:VanillaAttention",
    "linear": "flare.sequence.attention:LinearAttention",
    "linformer": "flare.sequence.attention:LinformerAttention",
    "norm": "flare.sequence.attention:NormAttention",
    "performer": "flare.sequence.performer:PerformerAttention",
    "flare": "flare.sequence.attention:FLAREAttention",
}
POSITIONS = ("learned", "sinusoidal", "rotary")
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
    """Tokens -> labels. Positions are added before every block; padding is neither attended to nor pooled.

    Args:
        vocabulary: number of token ids.
        labels: outputs; 1 for a yes or no.
        length: of the longest sequence (of one document).
        attention: one of `ATTENTIONS`; what it takes beyond the common arguments goes to `options`.
        channels: C.
        blocks: how many.
        heads: must divide C.
        mlp_ratio: hidden width of the FFN, in C; 4 by default. Not for FLARE:
        ffn_depth: inner layers of its residual MLP; 3 by default.
        norm: `layer` or `rms`.
        position: `learned`, `sinusoidal` or `rotary`.
        pool: `mean` or `max` over the real tokens, or a `cls` token in front.
        head: one Linear, or an `mlp` with a hidden layer.
        documents: 2 for pairs: both go through the same encoder and are judged side by side.
        dropout: of all places that follow and have none of their own.
        embedding_dropout: of token embeddings.
        projection_dropout: of what an attention adds.
        ffn_dropout: of hidden features of the FFN (FLARE's residual MLP has none).
        head_dropout: of pooled features.
        attention_dropout: of attention weights, where the attention has them.

    With two documents, `forward` takes both end to end, [B, 2 N].
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
        for name, value, known in (
            ("position", position, POSITIONS),
            ("pool", pool, POOLS),
            ("head", head, HEADS),
            ("norm", norm, NORMS),
        ):
            if value not in known:
                raise ConfigError(f"unknown {name} {value!r}; {nearest(value, known)}")
        at_least(1, vocabulary=vocabulary, labels=labels, length=length, channels=channels, blocks=blocks, heads=heads)
        if (mlp_ratio if attention == "flare" else ffn_depth) is not None:
            raise ConfigError("mlp_ratio is not for attention='flare', ffn_depth only for it")
        embedding_dropout, projection_dropout, ffn_dropout, head_dropout = (
            dropout if own is None else own
            for own in (embedding_dropout, projection_dropout, ffn_dropout, head_dropout)
        )
        if documents not in (1, 2):
            raise ConfigError(f"documents={documents}; use 1, or 2 for pairs")
        check_heads(channels, heads)
        self.length, self.pool, self.documents = length, pool, documents
        places = length + (pool == "cls")
        self.embedding = nn.Embedding(vocabulary, channels)
        self.embedding_dropout = nn.Dropout(embedding_dropout)
        self.cls = nn.Parameter(0.02 * torch.randn(channels)) if pool == "cls" else None
        self.positions = _positions(position, places, channels)
        rotate = Rotation(places, channels // heads) if position == "rotary" else None
        make = attention_class(attention, options)
        if attention == "flare":
            make = partial(make, norm=norm)

        def block() -> SequenceBlock:
            mixer = make(
                channels,
                heads,
                length=places,
                rotate=rotate,
                attention_dropout=attention_dropout,
                dropout=projection_dropout,
                **options,
            )
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
        """[B, N] token ids -> [B, labels]; `mask` is [B, N], True at real tokens. A pair is [B, 2 N], end to end."""
        if ids.ndim != 2 or ids.shape[1] % self.documents:
            wanted = "[B, N]" if self.documents == 1 else "[B, 2 N], two documents end to end"
            raise ConfigError(f"ids are {list(ids.shape)}; this model takes {wanted}")
        check_mask(ids, mask)
        batch = len(ids)
        ids = ids.reshape(batch * self.documents, -1)
        mask = None if mask is None else mask.reshape(ids.shape)
        if ids.shape[1] > self.length:
            raise ConfigError(f"this model is for sequences of at most {self.length} tokens, not {ids.shape[1]}")
        pooled = self.encode(ids, mask)
        return self.head(pooled.reshape(batch, -1))

    def redraw(self, step: int, seed: int = 0) -> None:
        """To be called after every training step, counted from 1; a Performer then draws new features now and then.

        They depend on the seed and the step alone, so that all ranks have the same ones.
        """
        # A generator of torch looks at 32 bits of its seed: these are of both numbers.
        generator = torch.Generator().manual_seed(int(np.random.SeedSequence([seed, step]).generate_state(1)[0]))
        for block in self.blocks:
            if isinstance(block.attention, PerformerAttention):
                block.attention.redraw(step, generator)

    def encode(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, N] -> [B, C]."""
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
            return x_BNC.amax(1) if mask is None else _greatest(x_BNC, mask)
        if mask is None:
            return x_BNC.mean(1)
        return x_BNC.masked_fill(~mask[..., None], 0.0).sum(1) / mask.sum(1, keepdim=True).clamp_min(1)


def _greatest(x_BNC: Tensor, mask: Tensor) -> Tensor:
    """Over the real tokens; zero where there is none."""
    greatest = x_BNC.masked_fill(~mask[..., None], -torch.inf).amax(1)
    return greatest.masked_fill(~mask.any(1, keepdim=True), 0.0)


def attention_class(name: str, options: dict[str, object]) -> Callable[..., nn.Module]:
    """An attention by name, which knows all of these options."""
    if name not in ATTENTIONS:
        raise ConfigError(f"unknown attention {name!r}; {nearest(name, ATTENTIONS)}")
    module, attribute = ATTENTIONS[name].split(":")
    found = getattr(import_module(module), attribute)
    known = attention_options(found)
    for option in options:
        if option not in known:
            raise ConfigError(f"attention {name!r} has no option {option!r}; {nearest(option, known)}")
    return found


def attention_options(kind: Callable[..., object]) -> dict[str, object]:
    """What an attention takes beyond what the encoder gives to all."""
    given = {"length", "rotate", "attention_dropout", "dropout", "norm"}
    parameters = inspect.signature(kind).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in given}


def options_of(attention: str) -> set[str]:
    """Names of the encoder's arguments that are this attention's alone."""
    own = set(attention_options(attention_class(attention, {})))
    return own | {"ffn_depth" if attention == "flare" else "mlp_ratio"}


def _positions(kind: str, length: int, channels: int) -> nn.Module | None:
    if kind == "rotary":
        return None
    return (LearnedPositions if kind == "learned" else SinusoidalPositions)(length, channels)


def _ffn(attention: str, channels: int, ratio: int | None, depth: int | None, dropout: float) -> nn.Module:
    if attention == "flare":
        return ResMLP(channels, channels, channels, 3 if depth is None else depth)
    ratio = 4 if ratio is None else ratio
    if attention == "norm":
        return transformer_mlp(channels, ratio, "tanh")
    first, activation, last = transformer_mlp(channels, ratio)
    return nn.Sequential(first, activation, nn.Dropout(dropout), last)
