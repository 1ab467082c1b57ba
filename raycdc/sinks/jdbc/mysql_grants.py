"""The privileges of an account of MySQL or MariaDB in a database, by the words of ``SHOW GRANTS``. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

#: The privileges for tables that the sink makes, and for staging tables. Without the last one an account does not see
#: the triggers of others, which may change its rows.
NEEDED = ("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "ALTER", "DROP", "TRIGGER")

_GRANT = re.compile(r"GRANT (?P<what>.+?) ON (?P<where>\S.*?) TO ", re.DOTALL)
_ROLE = re.compile(r"GRANT (?P<role>[`'].+?[`'](?:@[`'].*?[`'])?) TO ", re.DOTALL)


def missing(grants: Sequence[str], database: str) -> list[str] | None:
    """Which of `NEEDED` the account lacks in all of `database`; None where its privileges are on single tables, which
    may be enough.
    """
    have: set[str] = set()
    single = False
    for grant in grants:
        found = _GRANT.match(grant)
        if found is None:
            continue
        where = found["where"]
        if where == "*.*" or (where.endswith(".*") and _matches(where[:-2], database)):
            have |= {word.strip().upper() for word in found["what"].split(",")}
        elif _matches(where.partition("`.")[0].strip("`"), database):
            single = True
    lacking = [] if "ALL PRIVILEGES" in have else [name for name in NEEDED if name not in have]
    return None if lacking and single else lacking


def roles(grants: Iterable[str]) -> list[str]:
    """The roles that the account has, as the server writes them."""
    return [found["role"] for grant in grants if " ON " not in grant and (found := _ROLE.match(grant))]


def _matches(pattern: str, database: str) -> bool:
    """Whether the database part of a grant, with ``_`` and ``%`` as in LIKE, means `database`."""
    text = pattern.strip("`").replace("``", "`")
    parts = re.findall(r"\\[_%]|.", text, re.DOTALL)
    wild = {"_": ".", "%": ".*"}
    expression = "".join(wild.get(part) or re.escape(part.removeprefix("\\")) for part in parts)
    return re.fullmatch(expression, database, re.DOTALL) is not None
