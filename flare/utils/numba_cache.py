"""Numerical loops compiled by numba, cached beside the source or in the user's cache folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from numba import njit

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile a function for one thread. A division by zero gives inf or NaN, as in numpy.

    Processes that start at once may each compile it, with the same result; the cache file is written atomically.
    """
    try:
        return njit(function, cache=True, error_model="numpy")
    except RuntimeError:  # no cache folder is writable: compile in every process
        return njit(function, error_model="numpy")
