"""Numerical loops compiled by numba, once per machine: the result is kept beside the source or in the user's cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from numba import njit

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """The function as machine code, one thread. A division by zero gives inf or nan, as in numpy.

    Processes that start at once may each compile; they agree, and the file one of them writes appears whole.
    """
    try:
        return njit(function, cache=True, error_model="numpy")
    except RuntimeError:  # no folder can be written, neither the package's nor the user's: compile anew each time
        return njit(function, error_model="numpy")
