"""How results are put into words, the same in every verb."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ABOUT_ONE = 1.05
"""A ratio that one decimal would write as 1.0."""


def verdict(error: float, baseline: float) -> str:
    """Ours against the training-mean field; `1.0 times` would say nothing."""
    if error < baseline:
        if error <= 0:
            return "ours is exact"
        close = baseline / error < ABOUT_ONE
        return f"ours is {1 - error / baseline:.1%} better" if close else f"ours is {baseline / error:.1f} times better"
    if error < ABOUT_ONE * baseline:
        return f"ours is WORSE by {error / baseline - 1:.1%}"
    return f"ours is WORSE, {error / baseline:.1f} times its error"


def show_fields(errors: Mapping[str, tuple[float, float]]) -> None:
    """Field -> (our error, that of the mean field), a line each; one field alone has been said already."""
    if len(errors) > 1:
        for name, (ours, theirs) in errors.items():
            print(f"  {name:<20}{ours:.4f}   training-mean field {theirs:.4f}; {verdict(ours, theirs)}")


def show_accuracies(result: Mapping[str, Any]) -> None:
    """A line for each split, beside what can be guessed without reading the sequence."""
    for split, accuracy in result["accuracy"].items():
        guessed = ", ".join(f"{kind} {100 * of[split]:.1f}" for kind, of in result["guesses"].items())
        error = result["standard_error"][split]
        print(f"{split + ' accuracy':<22}{100 * accuracy:.1f} %  standard error {100 * error:.1f}; {guessed}")
    if "accuracy_ema" in result:
        averaged = ", ".join(f"{split} {100 * share:.1f} %" for split, share in result["accuracy_ema"].items())
        print(f"{'averaged weights':<22}{averaged}")
    label = f"that is, on {result['split']}"
    print(f"{label:<22}{result['reading']}")
    if result["protocol"] != "own":
        print(f"{'protocol':<22}{result['protocol']}, as the published table: padding is taken for tokens")


def with_unit(text: str, unit: str) -> str:
    """`3.2 MPa`; a dimensionless number stays bare."""
    return text if unit == "1" else f"{text} {unit}"
