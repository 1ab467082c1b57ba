"""Routes: the target tables to which a source table's rows go (``[[route]]`` and ``pipeline.route_mode``).

Pure. A route names tables as ``source.tables`` does, by a plain name or a regular expression that matches the whole of
``DATABASE.TABLE``, and says where they go:

| in ``to`` | stands for |
|---|---|
| ``$1`` … ``$99`` | the text that a group of the regular expression matched |
| ``$<name>`` | the text that a named group matched |
| ``$$`` | a dollar sign |
| the text of ``replace_symbol`` | the source table's name, without its database |

The result is DATABASE.TABLE. The table's name begins after the first dot of the result. There are two exceptions for a
database whose name has a dot. First, the database may be in backquotes in ``to``, as in ```lake.$1`.$2``. Second, if
the name of the source table's database has a dot, the first dot that is written in ``to`` separates database and table.
A dot in the text of a group then has no meaning.

Under ``all_match`` a table's rows go to the targets of all routes that match it, once to each target. Under
``first_match`` they go to the target of the first matching route. A table that no route matches keeps its name. The
text of a group is inserted unchanged: a ``$`` in it has no meaning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from raycdc.errors import ConfigError
from raycdc.model.rules.selector import NamePattern, check_pattern, plain_name, plain_table
from raycdc.model.table import TableId, quoted_parts

RouteMode = Literal["all_match", "first_match"]

_REFERENCE = re.compile(r"\$(?:(\d{1,2})|<(\w+)>|(\$)|(.?))", re.DOTALL)

#: Characters that no sink allows in a table's name; in some sinks the parts of a name are folders.
_NEVER_IN_NAMES = ("/", "\0")


@dataclass(frozen=True, slots=True)
class Route:
    """A ``[[route]]``. Raises ValueError for a pattern that can match no table, or an impossible target."""

    table: str
    to: str
    replace_symbol: str = ""

    def __post_init__(self) -> None:
        check_pattern(self.table)
        check_target(self.table, self.to, self.replace_symbol)

    @property
    def plain(self) -> TableId | None:
        """Return the one table that the route names; None for a regular expression."""
        return plain_table(self.table)

    def pattern(self) -> NamePattern:
        """Return the pattern of its tables."""
        return NamePattern.of(self.table)


class Router:
    """All routes of a pipeline; immutable."""

    def __init__(self, routes: Sequence[Route] = (), mode: RouteMode = "all_match") -> None:
        self.routes = tuple(routes)
        self._patterns = [route.pattern() for route in self.routes]
        self._first_only = mode == "first_match"
        self._known: dict[TableId, tuple[TableId, ...]] = {}

    def __bool__(self) -> bool:
        """Return True if there is any route."""
        return bool(self.routes)

    def __repr__(self) -> str:
        return f"Router({list(self.routes)!r}, first_only={self._first_only})"

    def targets(self, source: TableId) -> tuple[TableId, ...]:
        """Return the targets of `source`, in the order of the routes.

        Raises `ConfigError` if a route makes an invalid name.
        """
        known = self._known.get(source)
        if known is None:
            known = self._known[source] = self._targets(source)
        return known

    def _targets(self, source: TableId) -> tuple[TableId, ...]:
        return tuple(dict.fromkeys(self._made(source).values())) or (source,)

    def _made(self, source: TableId) -> dict[int, TableId]:
        """Return the target that each matching route makes of `source`, by the route's number."""
        found: dict[int, TableId] = {}
        for index, (route, pattern) in enumerate(zip(self.routes, self._patterns, strict=True)):
            matched = pattern.match(source)
            if matched is None:
                continue
            written = partial(
                _written, symbol=route.replace_symbol, table=source.table, group=partial(_matched, matched)
            )
            try:
                found[index] = _target(route.to, written, whole="." in source.db and "." not in route.replace_symbol)
            except ValueError as cause:
                raise ConfigError(f"route[{index}].to: of {source} it makes {cause}") from cause
            if self._first_only:
                break
        return found

    def mixed(self, source: TableId) -> str:
        """Return why a route would mix rows of `source` with those of another table; empty if it would not.

        Two tables whose names differ only in the separating dot have the same text: table ``b.c`` of database ``a`` and
        table ``c`` of database ``a.b`` are both ``a.b.c``. The route's regular expression matches both and makes the
        same target of them. Only the table whose *database* has the dot gets the reason and is stopped; the other table
        keeps its target.
        """
        parts = source.db.split(".")
        for index, target in self._made(source).items() if len(parts) > 1 else ():
            for number in range(1, len(parts)):
                other = TableId(".".join(parts[:number]), ".".join([*parts[number:], source.table]))
                if not (self._makes_names(index) and other.db and self._made(other).get(index) == target):
                    continue
                return (
                    f"route[{index}] cannot tell it from {other}: its regular expression sees both as "
                    f"{source.dotted}, and makes {target} of both. Name {plain_name(source)} in a route of its own, "
                    "which it takes instead of that one"
                )
        return ""

    def _makes_names(self, index: int) -> bool:
        """Return True if a route's target depends on what its groups matched."""
        return any(number or name for number, name, *_ in _REFERENCE.findall(self.routes[index].to))


def check_target(table: str, to: str, replace_symbol: str = "") -> None:
    """Raise ValueError if `to` makes no legal name of the tables that `table`, a valid pattern, matches.

    If a group may match the dot, the name is checked when a table matches.
    """
    pattern = NamePattern.of(table).regex
    if "$" in replace_symbol:
        raise ValueError(f'"{replace_symbol}" cannot be a symbol: $ begins the reference to a group')
    references = _REFERENCE.findall(to)
    for number, name, dollar, other in references:
        if number and not 1 <= int(number) <= pattern.groups:
            raise ValueError(f"${number} is no group: {table} has {_count(pattern.groups)}")
        if name and name not in pattern.groupindex:
            known = ", ".join(pattern.groupindex) or "none"
            raise ValueError(f"$<{name}> is no group: those of {table} with a name are {known}")
        if not (number or name or dollar):
            raise ValueError(
                f'"${other}" stands for nothing; write $1 or $<name> for a group, and $$ for a dollar sign'
            )
    written = partial(_written, symbol=replace_symbol, table="x")
    try:
        _target(to, partial(written, group=lambda _: "x"), of=to)
    except ValueError:
        if not any(number or name for number, name, *_ in references):
            raise
        _target(to, partial(written, group=lambda _: "x.x"), of=to)


def _target(to: str, written: Callable[[str], str], *, of: str = "", whole: bool = False) -> TableId:
    """Return the target that `to` makes.

    `written` replaces the references in a text.

    If `whole` is True, the first dot that is written in `to` separates database and table. Raises ValueError if no sink
    could have a table of that name.
    """
    if (parts := quoted_parts(to, r"[^`.]+", ".+")) is None:
        db, dot, table = to.partition(".")
        if whole and db and table:
            parts = db, table
        else:
            db, dot, table = written(to).partition(".")
            return _legal(db, table, of or f"{db}{dot}{table}")
    db, table = map(written, parts)
    return _legal(db, table, of or f"{db}.{table}")


def _legal(db: str, table: str, name: str) -> TableId:
    if not (db and table):
        raise ValueError(f'"{name}", which is not DATABASE.TABLE')
    if any(bad in part for bad in _NEVER_IN_NAMES for part in (db, table)) or {".", ".."} & {db, table}:
        raise ValueError(f'"{name}", which cannot be the name of a table')
    return TableId(db, table)


def _written(to: str, *, symbol: str, table: str, group: Callable[[int | str], str]) -> str:
    """Return `to` with its references and the symbol replaced.

    A ``$`` or the symbol in a replacement has no meaning.
    """

    def replaced(text: str) -> str:
        return text.replace(symbol, table) if symbol else text

    parts: list[str] = []
    at = 0
    for reference in _REFERENCE.finditer(to):
        parts.append(replaced(to[at : reference.start()]))
        number, name, dollar, _ = reference.groups()
        parts.append("$" if dollar else group(int(number) if number else name))
        at = reference.end()
    parts.append(replaced(to[at:]))
    return "".join(parts)


def _matched(match: re.Match[str], group: int | str) -> str:
    """Return the text that a group matched; empty if the group took no part."""
    return match[group] or ""


def _count(groups: int) -> str:
    return f"{groups} group{'' if groups == 1 else 's'}" if groups else "no groups"
