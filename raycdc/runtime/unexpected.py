"""An error that nobody has named becomes an `UnexpectedError`: with the line of code that it comes from, and its kind.

The line that helps is the one in the package of the source, be it raycdc's or a plug-in's: the deepest of its lines in
the traceback. Where the error never was in that package, the deepest line of all is told.
"""

from __future__ import annotations

import traceback

from raycdc.errors import UnexpectedError

#: Errors of code that is wrong. The world (files, sockets, servers, libraries that speak to them) has other kinds.
LASTING = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    SyntaxError,
    TypeError,
)
_TEXT_MAX = 500


def unexpected(error: Exception, maker: object) -> UnexpectedError:
    """`error`, which was raised while an object of the package of `maker` was at work."""
    package = type(maker).__module__.partition(".")[0]
    steps = list(traceback.walk_tb(error.__traceback__))
    own = [step for step in steps if str(step[0].f_globals.get("__name__", "")).partition(".")[0] == package]
    text = " ".join(str(error).split())[:_TEXT_MAX]
    told = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if deepest := (own or steps)[-1:]:
        frame, line = deepest[0]
        told += f" ({frame.f_code.co_filename}:{line}, in {frame.f_code.co_name})"
    trace = "".join(traceback.format_exception(error)).rstrip()
    return UnexpectedError(f"{told}.", lasting=isinstance(error, LASTING), trace=trace)
