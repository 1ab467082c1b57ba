"""Whose an exception is that came out of a library's call: what the library says of the table, or a bug of ours.

Libraries raise `ValueError` and Arrow's errors for a table that somebody damaged; our own code raises the same where it
is wrong. The traceback tells them apart: what the library raised passed through its own modules below our last one.
"""

from __future__ import annotations

from types import TracebackType


def raised_in(error: BaseException, *packages: str) -> bool:
    """Whether the function that our code called last, before `error` was raised, is one of `packages`' own."""
    called = ""
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] == "raycdc":
            called = ""
        elif not called:
            called = module
        trace = trace.tb_next
    return any(called == package or called.startswith(f"{package}.") for package in packages)
