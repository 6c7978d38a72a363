"""Classifier of token sequences: an encoder with the meaning of its tokens and classes."""

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
from torch import Tensor

from flare.inference.surrogate import VERSION, Learner, find_checkpoint, load_weights, move_to_device
from flare.sequence.batch import collate
from flare.sequence.encoder import SequenceEncoder, attention_class, attention_options
from flare.sequence.store import Example, SequenceSchema, checked_tokens
from flare.train.presets import with_present_names
from flare.utils.errors import CheckpointError, ConfigError, DataError, suggest_name

NAME = "sequence"
"""Name of the model in settings."""


class Classifier(Learner):
    """Classifier of token sequences. Two classes have one logit, that of the second class.

    Args:
        model: `{"name": "sequence", "attention": "flare", ...}` with arguments of `SequenceEncoder`. `length` may be
            given to pad beyond the longest sequence of the data.
        schema: Meaning of tokens and labels.
        masks: Whether padding is masked. A classifier trained without a mask (protocol `dev-split-no-mask`) also
            predicts without one, from sequences padded to its length.
    """

    network: SequenceEncoder

    def __init__(self, model: Mapping[str, Any], schema: SequenceSchema, *, masks: bool = True) -> None:
        super().__init__()
        check_model_settings(model)
        self.model, self.schema, self.masks = dict(model), schema, masks
        sizes = {key: value for key, value in model.items() if key not in ("name", "length")}
        self.length = model_length(model, schema)
        labels = 1 if len(schema.classes) == 2 else len(schema.classes)
        self.network = SequenceEncoder(schema.vocabulary, labels, self.length, documents=schema.documents, **sizes)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return logits, [B, N] or [B, 2 N] for pairs -> [B, K], or [B, 1] for two classes."""
        return self.network(ids, mask)

    @property
    def about(self) -> dict[str, Any]:
        """Everything needed to build it again, as saved in `model.json`."""
        return {"holds": "sequences", "model": self.model, "schema": self.schema.to_json(), "masks": self.masks}

    @property
    def fixed(self) -> int | None:
        """Length to which all sequences are padded; None for the longest of a batch."""
        return None if self.masks else self.length

    def check_sequences(self, schema: SequenceSchema, where: str | os.PathLike[str]) -> None:
        """Raise `DataError` if tokens or classes differ from those of the training data."""
        for name in ("vocabulary", "classes", "pad", "documents"):
            mine, theirs = getattr(self.schema, name), getattr(schema, name)
            if mine != theirs:
                raise DataError(f"{where} does not fit this model: {name} is {theirs}, trained with {mine}")
        if schema.longest > self.length:
            raise DataError(f"{where} has sequences of up to {schema.longest} tokens; this model takes {self.length}")

    @torch.no_grad()
    def predict(self, *documents: ArrayLike) -> str:
        """Return the class of one sequence or pair, given its tokens."""
        self.eval()
        if len(documents) != self.schema.documents:
            raise DataError(f"{self.schema.name} takes {self.schema.documents} document(s), not {len(documents)}")
        example = Example(tuple(map(self._checked, documents)), 0)
        batch = collate([(0, example)], pad=self.schema.pad, fixed=self.fixed).to(next(self.parameters()).device)
        return self.schema.classes[int(predicted_class(self(batch.ids, batch.mask)))]

    def _checked(self, document: ArrayLike) -> np.ndarray:
        tokens = checked_tokens(np.asarray(document), replace(self.schema, longest=self.length), "the sequence")
        if self.schema.pad is None and len(tokens) != self.schema.longest:  # an image, which cannot be padded
            expected = self.schema.longest
            raise DataError(f"the sequence has {len(tokens):,} tokens; {self.schema.name} needs exactly {expected:,}")
        return tokens


def predicted_class(logits: Tensor) -> Tensor:
    """Return the labels [B] of logits [B, K] or [B, 1]."""
    return (logits[:, 0] > 0).long() if logits.shape[1] == 1 else logits.argmax(1)


def model_length(model: Mapping[str, Any], schema: SequenceSchema) -> int:
    """Return the longest sequence that a model takes.

    Raises:
        ConfigError: `model.length` is shorter than sequences of the task may be.
    """
    length = model.get("length", schema.longest)
    if not isinstance(length, int) or length < schema.longest:
        longest = f"sequences of {schema.name} have up to {schema.longest:,} tokens"
        raise ConfigError(f"model.length={length} is too short: {longest}; leave it out or increase it")
    return length


def check_model_settings(model: Mapping[str, Any]) -> None:
    """Raise a `ConfigError` if a model does not read sequences, or has a setting that its attention does not know."""
    if model["name"] != NAME:
        raise ConfigError(f"model.name={model['name']!r} does not read sequences; use model.name={NAME}")
    attention = str(model.get("attention", "flare"))
    known = known_settings(attention)
    for name in model:
        if name not in known:
            raise ConfigError(f"attention {attention!r} has no option {name!r}; {suggest_name(name, known)}")


def known_settings(attention: str) -> set[str]:
    """Return the settings that a model with this attention has."""
    attention_class(attention)
    hidden = ("vocabulary", "labels", "documents", "options")
    own = [name for name in inspect.signature(SequenceEncoder).parameters if name not in hidden]
    return {"name", *own, *attention_options(attention)}


def load_classifier(
    run: str | os.PathLike[str], *, checkpoint: str = "last", ema: bool = False, device: str = "cpu"
) -> Classifier:
    """Load a trained classifier from its run folder; see `flare.load` for the arguments."""
    folder = find_checkpoint(Path(run), checkpoint)
    try:
        about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        if about["version"] != VERSION or about.get("holds") != "sequences":
            raise CheckpointError(f"{folder} does not hold a sequence classifier that this version of flare can read")
        schema = SequenceSchema.from_json(about["schema"])
        model = with_present_names({"model": about["model"]})["model"]
        classifier = Classifier(model, schema, masks=about.get("masks", True))
    except (OSError, json.JSONDecodeError, KeyError, TypeError, ConfigError, DataError) as error:
        raise CheckpointError(f"{folder / 'model.json'} is damaged or of another version: {error}") from None
    if ema and not (folder / "ema.safetensors").exists():
        raise CheckpointError(f"{folder} has no averaged weights; train with optim.ema=0.999 to keep them")
    load_weights(classifier, folder / ("ema.safetensors" if ema else "model.safetensors"))
    return move_to_device(classifier, device)
