"""Inputs on which a regular expression may take long: for each of its repetitions, a text that repeats and then fails.

The texts are made of the parsed expression. A text has a beginning that leads to the repetition, many repeats of one of
its bodies, and an end at which no alternative matches, so that a backtracking engine tries every way to divide the
repeats. What takes quadratic or exponential time on any text usually does so on one of these.
"""

from __future__ import annotations

import re
import re._constants as codes  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Iterator
from typing import Any

#: Characters at which few repetitions go on.
ENDS = ("\0", "'", "*/ x", "\\", "")


def worst_inputs(pattern: re.Pattern[str]) -> Iterator[tuple[str, str, str]]:
    """Yield beginnings, repeated texts and ends."""
    parsed = parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG)
    seen = set()
    for before, body in _repeats(list(parsed), ""):
        for pump in _pumps(body):
            for begin in {before, ""}:
                for end in ENDS:
                    if (begin, pump, end) not in seen:
                        seen.add((begin, pump, end))
                        yield begin, pump, end


def _repeats(items: list[Any], before: str) -> Iterator[tuple[str, list[Any]]]:
    """Yield each unbounded repetition of `items` with a text that matches what comes before it."""
    for at, (op, value) in enumerate(items):
        lead = before + _shortest(items[:at])
        if op in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            _, most, inner = value
            if most is codes.MAXREPEAT or most > 50:
                yield lead, list(inner)
                # The text from which a search starts again and again, alone and with the beginning of what follows.
                yield "", items[:at]
                yield "", [*items[:at], *list(inner), *items[at + 1 : at + 3]]
            yield from _repeats(list(inner), lead)
        else:
            for inner in _inside(op, value):
                yield from _repeats(inner, lead)


def _inside(op: Any, value: Any) -> Iterator[list[Any]]:
    if op is codes.SUBPATTERN:
        yield list(value[3])
    elif op is codes.ATOMIC_GROUP:
        yield list(value)
    elif op is codes.BRANCH:
        yield from (list(branch) for branch in value[1])
    elif op in (codes.ASSERT, codes.ASSERT_NOT):
        yield list(value[1])
    elif op is codes.GROUPREF_EXISTS:
        yield from (list(branch) for branch in value[1:] if branch is not None)


def _pumps(body: list[Any]) -> list[str]:
    """Texts that match the body once: a few of its alternatives, and two of them one after the other."""
    texts = [text for text in dict.fromkeys(_texts(body)) if text][:4]
    # A word needs another character after it.
    return [
        *texts,
        *(f"{text} " for text in texts[:2] if text[-1].isalnum()),
        *(a + b for a in texts[:2] for b in texts[:3] if a != b),
    ]


def _texts(items: list[Any]) -> list[str]:
    """Texts that match `items`, the shortest first; at most some."""
    found = [""]
    for op, value in items:
        found = [one + more for one in found for more in _choices(op, value)][:12]
    return found


def _choices(op: Any, value: Any) -> list[str]:
    if op is codes.LITERAL:
        return [chr(value)]
    if op is codes.NOT_LITERAL:
        return ["a" if value != ord("a") else "b"]
    if op is codes.ANY:
        return ["a", "*", "'"]
    if op is codes.IN:
        return _members(value)
    if op is codes.BRANCH:
        return [text for branch in value[1] for text in _texts(list(branch))[:2]]
    if op in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
        least, most, inner = value
        once = _texts(list(inner))[:3]
        shortest = once[0] if once else ""
        texts = [shortest * least]
        return texts if most == least else [*texts, *(shortest * least + one for one in once)]
    if op is codes.SUBPATTERN:
        return _texts(list(value[3]))
    if op is codes.ATOMIC_GROUP:
        return _texts(list(value))
    if op is codes.GROUPREF_EXISTS:
        return _texts(list(value[1]))
    return [""]


def _members(members: list[Any]) -> list[str]:
    """Some characters of a set."""
    if members[0][0] is codes.NEGATE:
        return [char for char in ("a", " ", "1", "-", "*", "/") if not _holds(members[1:], char)][:3]
    found = []
    for op, value in members:
        if op is codes.LITERAL:
            found.append(chr(value))
        elif op is codes.RANGE:
            found.append(chr(value[0]))
        elif op is codes.CATEGORY:
            found.append(
                {codes.CATEGORY_DIGIT: "1", codes.CATEGORY_SPACE: " ", codes.CATEGORY_WORD: "a"}.get(value, "!")
            )
    return found[:4]


def _holds(members: list[Any], char: str) -> bool:
    for op, value in members:
        if op is codes.LITERAL and value == ord(char):
            return True
        if op is codes.RANGE and value[0] <= ord(char) <= value[1]:
            return True
        if op is codes.CATEGORY:
            category = {codes.CATEGORY_DIGIT: r"\d", codes.CATEGORY_SPACE: r"\s", codes.CATEGORY_WORD: r"\w"}.get(value)
            if category is not None and re.fullmatch(category, char):
                return True
    return False


def _shortest(items: list[Any]) -> str:
    return _texts(items)[0]
