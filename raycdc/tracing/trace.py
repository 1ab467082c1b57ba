"""A trace before it is anybody's format: a tree of spans, each with its times, what it was about, and what went wrong.

Names of spans are few, so that a collector can group by them; numbers and names of tables are attributes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Attribute = str | int | bool | tuple[str, ...] | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened at one moment within a span, in nanoseconds of the wall clock."""

    name: str
    at_ns: int
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    """Work from one moment to another, in nanoseconds of the wall clock; `error` is the class of the error that ended
    it, or another word for what went wrong (empty: nothing).
    """

    name: str
    began_ns: int
    ended_ns: int
    attributes: Mapping[str, Attribute]
    events: tuple[SpanEvent, ...] = ()
    error: str = ""
    children: tuple[Span, ...] = ()
