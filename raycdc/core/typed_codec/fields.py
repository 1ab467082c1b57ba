"""The options of a dataclass's field that its type hint does not express, and the error for a value that cannot be
read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

#: Stands for a value that was not given.
NONE_GIVEN: Any = object()


class CodecError(ValueError):
    """The error for a value that cannot be read.

    `path` leads to the value from the outermost object, as in ``segments[3].rows``.
    """

    def __init__(self, problem: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(problem, path)
        self.problem = problem
        self.path = path

    def __str__(self) -> str:
        where = "".join(self.path).removeprefix(".")
        return f"{where}: {self.problem}" if where else self.problem

    def within(self, step: str) -> CodecError:
        """Return the error with `step` before its path, for the object that contains the value."""
        return CodecError(self.problem, (step, *self.path))


class JsonText:
    """Base of values that are texts in documents: ``str`` writes them, and the class method ``parse`` reads them."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class FieldOptions:
    """The options of a field; `stored` explains them."""

    name: str = ""
    left_out: bool = False
    older: object = NONE_GIVEN
    before: str = ""
    write: Callable[[Any], Any] | None = None
    read: Callable[[Any], Any] | None = None
    nowhere: bool = False
    spread: bool = False
    packed: bool = False


OPTIONS_KEY = "raycdc.stored"


PLAIN = FieldOptions()


def stored(
    name: str = "",
    *,
    left_out: bool = False,
    older: object = NONE_GIVEN,
    before: str = "",
    write: Callable[[Any], Any] | None = None,
    read: Callable[[Any], Any] | None = None,
) -> Mapping[str, FieldOptions]:
    """Return the metadata of a field with these options.

    `name` is its key, if that differs from the field's name.

    If `left_out` is True, a value that equals the default is not written. `older` is the value for documents that lack
    the key; it is always written, or with `left_out` it takes the place of the default. The key is written `before`
    that of another field. `write` and `read` replace the functions that the type hint gives.
    """
    return {OPTIONS_KEY: FieldOptions(name, left_out, older, before, write, read)}


#: Metadata of a field that is not written if its value is the default.
LEFT_OUT = stored(left_out=True)


#: Metadata of a field that is never written.
NOWHERE = {OPTIONS_KEY: FieldOptions(nowhere=True)}
#: Metadata of a field whose value is a dataclass, and whose keys are written as keys of the object itself.
SPREAD = {OPTIONS_KEY: FieldOptions(spread=True)}
#: Metadata of a mapping whose values are msgpack each. Of 100,000 tables, only one at a time is then in memory as lists
#: and maps.
PACKED = {OPTIONS_KEY: FieldOptions(packed=True)}
