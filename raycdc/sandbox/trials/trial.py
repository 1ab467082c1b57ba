"""The interface of a sandbox server: its address, its accounts, and the next commands to type.

A `SandboxServer` is a server with its accounts. A `SandboxSourceServer` also has a shop. The shop can be changed, and
its rows can be read without code of raycdc, for comparison with a target.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from raycdc.sandbox.servers.private import PrivateServer
from raycdc.sandbox.shop import ShopSize

#: The shop's tables, and the column of each whose values are compared, in addition to the keys.
COMPARED: Mapping[str, str] = {"customers": "tier", "products": "stock", "orders": "quantity"}
DATABASE = "shop"
#: The number of columns of a terminal.
_WIDTH = 80


@dataclass(frozen=True, slots=True)
class SandboxAccount:
    """An account. `may` describes its rights, in words that follow the name."""

    name: str
    password: str
    may: str


class SandboxServer(AbstractContextManager["SandboxServer"], ABC):
    """A sandbox server. A ``with`` block starts the server, and removes it at the end."""

    #: The name by which people know the server.
    title: ClassVar[str]
    accounts: ClassVar[tuple[SandboxAccount, ...]] = ()

    def __init__(self, server: PrivateServer) -> None:
        self.server = server

    def __enter__(self) -> Self:
        self.server.__enter__()
        try:
            self.prepare()
        except BaseException:
            self.server.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()

    def prepare(self) -> None:
        """Create what a target needs, such as the database that an address names."""

    @property
    def address(self) -> str:
        return f"{self.server.host}:{self.server.port}"

    @property
    def version(self) -> str:
        """Return the server's own name and version."""
        return self.title

    @property
    @abstractmethod
    def url(self) -> str:
        """Return the URL for clients."""

    def preview_code(self, database: str, table: str) -> str:
        """Return Python code that prints a few rows of a table; raycdc's own packages suffice."""
        return ""

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the environment variables that the commands need."""
        return {}

    @property
    def as_sink(self) -> Mapping[str, str]:
        """Return the keys of ``[sink]`` for this server, with references to secrets; empty for a server that is no
        target.
        """
        return {}

    @property
    def piece(self) -> str:
        """Return sections of a configuration, for a server that ``raycdc init`` does not ask about."""
        return ""


class SandboxSourceServer(SandboxServer):
    """A sandbox server with the shop's tables `COMPARED`."""

    @property
    @abstractmethod
    def as_source(self) -> Mapping[str, str | int | Sequence[str]]:
        """Return the keys of ``[source]`` for the whole shop, with references to secrets."""

    @property
    @abstractmethod
    def init_words(self) -> Sequence[str]:
        """Return the options of ``raycdc init`` for the whole shop."""

    @abstractmethod
    def fill(self, size: ShopSize) -> None:
        """Create the shop; called once."""

    def alter(self) -> None:
        """Change the columns of a table, if the server has columns.

        Must not be called while another thread is in `step`.
        """

    @abstractmethod
    def step(self) -> None:
        """Make one transaction of a customer. Used by one thread at a time."""

    @abstractmethod
    def summary(self) -> str:
        """Return a summary of the steps so far, in words."""

    @abstractmethod
    def held(self, table: str) -> dict[int, str]:
        """Return the rows of a table by their keys: the value of the column that `COMPARED` names, as text."""


def typed(words: Sequence[str], indent: str = "  ") -> list[str]:
    """Return a command in lines of at most 80 columns that can be copied as they are.

    An option and its value are on the same line.
    """
    pieces: list[str] = []
    for number, word in enumerate(words):
        shown = shlex.quote(word)
        if pieces and number and words[number - 1].startswith("--") and not word.startswith("--"):
            pieces[-1] += f" {shown}"
        else:
            pieces.append(shown)
    lines = [f"{indent}{pieces[0]}"]
    for piece in pieces[1:]:
        if len(lines[-1]) + len(piece) + 3 > _WIDTH:
            lines[-1] += " \\"
            lines.append(f"{indent}  {piece}")
        else:
            lines[-1] += f" {piece}"
    return lines


def program(name: str) -> str:
    """Return how a program of this installation is typed here."""
    found = shutil.which(name)
    folder = Path(sys.executable).parent
    if found is not None and Path(found).parent == folder:
        return name
    if folder.is_relative_to(Path.cwd()):
        folder = folder.relative_to(Path.cwd())
    return str(folder / name)


def python_command(code: str) -> list[str]:
    """Return a command that runs Python `code`, in lines that can be copied as they are."""
    return [f"{program('python')} -c '", *code.splitlines(), "'"]
