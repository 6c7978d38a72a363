"""Counts, durations and records formatted for people."""

from __future__ import annotations

from collections.abc import Mapping


def counted(count: int, what: str) -> str:
    """Return `1 layer group` or `1,200 layer groups`."""
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def format_record(value: object) -> str:
    """Format a value of a record without JSON syntax."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {format_record(inner)}" for key, inner in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def duration(seconds: float) -> str:
    """Return `42 s`, `3 min 05 s`, `2 h 10 min` or `5 days`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 4 * 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole / 86400:,.0f} days"
