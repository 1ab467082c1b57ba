"""What a field says of its form in documents beside its type hint, and the error of a value that cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

#: Stands for a value that was not given.
NONE_GIVEN: Any = object()


class CodecError(ValueError):
    """A value that cannot be read. `path` leads to it from the outside in, as in ``segments[3].rows``."""

    def __init__(self, problem: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(problem, path)
        self.problem = problem
        self.path = path

    def __str__(self) -> str:
        where = "".join(self.path).removeprefix(".")
        return f"{where}: {self.problem}" if where else self.problem

    def within(self, step: str) -> CodecError:
        """The error as the one who holds the value under `step` sees it."""
        return CodecError(self.problem, (step, *self.path))


class JsonText:
    """Base of values that are texts in documents: ``str`` writes them, and the class method ``parse`` reads them."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class FieldOptions:
    """See `stored`."""

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
    """Metadata of a field: the `name` of its key, where that is not its own.

    `left_out`: a value that equals the field's default has no key. `older` is the value in documents that were written
    before the field was there; it is always written, or left out instead of the default. The key stands `before` that
    of another field. `write` and `read` are of a field whose form no hint says.
    """
    return {OPTIONS_KEY: FieldOptions(name, left_out, older, before, write, read)}


#: Metadata of a field that has no key where its value is the default.
LEFT_OUT = stored(left_out=True)


#: Metadata of a field that no document has.
NOWHERE = {OPTIONS_KEY: FieldOptions(nowhere=True)}
#: Metadata of a field whose value has fields that are texts: these are keys of the object itself.
SPREAD = {OPTIONS_KEY: FieldOptions(spread=True)}
#: Metadata of a mapping whose values are each msgpack by itself: of 100,000 tables only one is there as lists and maps
#: at a time.
PACKED = {OPTIONS_KEY: FieldOptions(packed=True)}
