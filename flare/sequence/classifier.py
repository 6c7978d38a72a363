"""A classifier of sequences: an encoder, and what its tokens and classes mean. Tokens in, classes out."""

# B batch, N tokens, K classes

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from flare.sequence.batch import collate
from flare.sequence.encoder import ATTENTIONS, SequenceEncoder, attention_class, attention_options, options_of
from flare.sequence.store import Example, SequenceSchema, checked_tokens
from flare.surrogate import VERSION, find_checkpoint, load_weights, placed
from flare.utils.errors import CheckpointError, ConfigError, DataError, nearest

NAME = "sequence"
"""Of the model, in settings."""
OF_THE_DATA = ("vocabulary", "labels", "documents")


class Classifier(nn.Module):
    """Logits of tokens. Two classes have one logit, that of the second.

    Args:
        model: `{"name": "sequence", "attention": "flare", ...}`, arguments of `SequenceEncoder`; `length` may be given
            where sequences are padded beyond the longest of the data.
        schema: what the tokens and labels are.
        masks: whether padding is told from tokens. One trained without (protocol `dev-split-no-mask`) is asked with
            sequences padded to its length, too.
    """

    def __init__(self, model: Mapping[str, Any], schema: SequenceSchema, *, masks: bool = True) -> None:
        super().__init__()
        _refuse_unknown(model)
        self.model, self.schema, self.masks = dict(model), schema, masks
        sizes = {key: value for key, value in model.items() if key not in ("name", "length")}
        self.length = model_length(model, schema)
        labels = 1 if len(schema.classes) == 2 else len(schema.classes)
        self.network = SequenceEncoder(schema.vocabulary, labels, self.length, documents=schema.documents, **sizes)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, N] or, of pairs, [B, 2 N] -> [B, K], or [B, 1] for two classes."""
        return self.network(ids, mask)

    @property
    def about(self) -> dict[str, Any]:
        """All that is needed to build it anew."""
        return {"holds": "sequences", "model": self.model, "schema": self.schema.to_json(), "masks": self.masks}

    @property
    def fixed(self) -> int | None:
        """The length all sequences are padded to; None where the batch's longest will do."""
        return None if self.masks else self.length

    def check_sequences(self, schema: SequenceSchema, where: str | os.PathLike[str]) -> None:
        """Refuse data whose tokens or classes are not those this model was trained on."""
        for name in ("vocabulary", "classes", "pad", "documents"):
            mine, theirs = getattr(self.schema, name), getattr(schema, name)
            if mine != theirs:
                raise DataError(f"{where} does not fit this model: its {name} is {theirs}, trained on {mine}")
        if schema.longest > self.length:
            raise DataError(f"{where} has sequences of up to {schema.longest} tokens; this model takes {self.length}")

    @torch.no_grad()
    def predict(self, *documents: ArrayLike) -> str:
        """The class of one sequence, or of one pair; tokens as `SequenceDataset` gives them."""
        self.eval()
        if len(documents) != self.schema.documents:
            raise DataError(f"{self.schema.name} asks for {self.schema.documents} document(s), not {len(documents)}")
        example = Example(tuple(map(self._checked, documents)), 0)
        batch = collate([(0, example)], pad=self.schema.pad, fixed=self.fixed).to(next(self.parameters()).device)
        return self.schema.classes[int(decide(self(batch.ids, batch.mask)))]

    def _checked(self, document: ArrayLike) -> np.ndarray:
        tokens = checked_tokens(_as_array(document), replace(self.schema, longest=self.length), "the sequence")
        if self.schema.pad is None and len(tokens) != self.schema.longest:  # a picture, which cannot be padded
            task, wanted = self.schema.name, self.schema.longest
            raise DataError(f"the sequence: {len(tokens):,} tokens; every sequence of {task} has {wanted:,}")
        return tokens


def _as_array(tokens: ArrayLike) -> np.ndarray:
    try:
        return np.asarray(tokens)
    except ValueError:
        raise DataError("the sequence: its parts differ in length; one vector of integers is needed") from None


def decide(logits: Tensor) -> Tensor:
    """[B, K] or [B, 1] -> [B] labels."""
    return (logits[:, 0] > 0).long() if logits.shape[1] == 1 else logits.argmax(1)


def model_length(model: Mapping[str, Any], schema: SequenceSchema, found: int | None = None) -> int:
    """The longest sequence a model of these settings takes; `found` is the longest there is, to be told."""
    length = model.get("length", schema.longest)
    if not isinstance(length, int) or length < schema.longest:
        here = "" if found is None else f" (the longest here has {found:,})"
        raise ConfigError(
            f"model.length={length}; sequences of {schema.name} may have up to {schema.longest:,} tokens{here}. Leave "
            f"model.length out, or say {schema.longest} or more; shorter sequences need a dataset of their own"
        )
    return length


def _refuse_unknown(model: Mapping[str, Any]) -> None:
    """Before Python says something else of an unknown argument."""
    if model["name"] != NAME:
        raise ConfigError(f"model.name={model['name']!r} does not read sequences; use --model.name {NAME}")
    attention = str(model.get("attention", "flare"))
    known = known_settings(attention)
    for name in model:
        if name not in known:
            of = [other for other in ATTENTIONS if name in options_of(other)]
            its = f"its own are: {', '.join(sorted(options_of(attention)))}; {name!r} is of {', '.join(of)}"
            raise ConfigError(f"attention {attention!r} has no option {name!r}; {its if of else nearest(name, known)}")


def known_settings(attention: str) -> set[str]:
    """Of a model with this attention, all that a user may set."""
    own = [name for name in inspect.signature(SequenceEncoder).parameters if name not in (*OF_THE_DATA, "options")]
    return {"name", *own, *attention_options(attention_class(attention, {}))}


def load_classifier(
    run: str | os.PathLike[str], *, checkpoint: str = "last", ema: bool = False, device: str = "cpu"
) -> Classifier:
    """A trained classifier from its run folder; see `flare.load` for the arguments."""
    folder = find_checkpoint(Path(run), checkpoint)
    try:
        about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        if about["version"] != VERSION or about.get("holds") != "sequences":
            raise CheckpointError(f"{folder} holds no classifier of sequences that this flare reads")
        schema = SequenceSchema.from_json(about["schema"])
        classifier = Classifier(about["model"], schema, masks=about.get("masks", True))
    except (OSError, json.JSONDecodeError, KeyError, TypeError, ConfigError, DataError) as error:
        raise CheckpointError(f"{folder / 'model.json'} is damaged or of another flare: {error}") from None
    if ema and not (folder / "ema.safetensors").exists():
        raise CheckpointError(f"{folder} has no averaged weights; train with --optim.ema 0.999 to keep them")
    load_weights(classifier, folder / ("ema.safetensors" if ema else "model.safetensors"))
    return placed(classifier, device)
