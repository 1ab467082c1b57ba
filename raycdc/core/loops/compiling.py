"""Compiles loops as `raycdc.core.compiled` does, but without reference counts, and with inlined calls.

The loops of the formats, of BSON and of this package are compiled with it.

numba passes a tuple of arrays by value, as some eighty machine words, and counts references around each call. In loops
over the cells of a row, both cost more than the work itself. The functions own no memory, so `helper` and `njit` switch
the counting off. `inlined` also makes LLVM put a helper into its caller, where the words stay in registers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from raycdc.core.compiled import CompiledFunction

Function = TypeVar("Function", bound=Callable[..., Any])


def _dispatcher(function: Callable[..., Any], *, inline: bool) -> Any:
    from raycdc.core import compiled_build

    options = {**compiled_build._OPTIONS, "_nrt": False, "forceinline": inline}
    dispatcher = compiled_build.numba.njit(**options)(function)
    compiled_build._dispatchers.append(dispatcher)
    return compiled_build.types.Dispatcher(dispatcher)


class _Helper:
    """A function that only compiled functions call. numba sees it as a dispatcher, and all other code as the plain
    function.
    """

    def __init__(self, function: Callable[..., Any], *, inline: bool) -> None:
        self._function = function
        self._inline = inline
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    @functools.cached_property
    def _numba_type_(self) -> Any:
        return _dispatcher(self._function, inline=self._inline)


class _Entry(CompiledFunction):
    @functools.cached_property
    def _numba_type_(self) -> Any:
        return _dispatcher(self._function, inline=False)


def helper(function: Function) -> Function:
    """Mark a function that is compiled into its callers, perhaps as a call."""
    return cast("Function", _Helper(function, inline=False))


def inlined(function: Function) -> Function:
    """Mark a function whose code becomes part of its callers."""
    return cast("Function", _Helper(function, inline=True))


def njit(function: Function) -> Function:
    """Return `function` compiled, callable from Python."""
    return cast("Function", _Entry(function))
