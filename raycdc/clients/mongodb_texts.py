"""The texts of MongoDB's errors without the values of rows that its servers and its driver quote. Pure."""

from __future__ import annotations

import re

#: A command that its user may not give is told as it came, with the keys of a query and the documents that are no
#: sequence of their own (mongod, `commands.cpp`).
_DENIED = re.compile(r"not authorized on (?P<database>\S+) to execute command \{ (?P<command>\w+):.*", re.DOTALL)
#: What the driver adds, the values of a key that is there already, and those of a document that a rule refuses.
_QUOTES = (", full error:", " dup key:")


def untold(text: str) -> str:
    """`text` of a server or of the driver, as far as it says nothing of a row."""
    for begins in _QUOTES:
        text = text.partition(begins)[0]
    return _DENIED.sub(r"not authorized on \g<database> to execute command \g<command>", text)


def denied_database(text: str) -> str:
    """The database in which a user may not give a command; empty where `text` does not say so."""
    found = _DENIED.match(text)
    return found["database"] if found else ""
