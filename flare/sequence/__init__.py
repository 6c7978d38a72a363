"""Sequences of tokens: one encoder, and the attentions that the paper compares on the Long Range Arena."""

from flare.sequence.encoder import SequenceEncoder as SequenceEncoder
