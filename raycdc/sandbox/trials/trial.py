"""What a trial server says of itself: how it is reached, by whom, and what to type next.

A `SandboxServer` is a server with its accounts. A `SandboxSourceServer` also has a shop, which can be changed and asked
for its rows, so that a target can be compared with it by means that share nothing with raycdc.
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

#: The shop's tables, and the column of each whose values are compared beside the keys.
COMPARED: Mapping[str, str] = {"customers": "tier", "products": "stock", "orders": "quantity"}
DATABASE = "shop"
#: As many columns as a terminal has.
_WIDTH = 80


@dataclass(frozen=True, slots=True)
class SandboxAccount:
    """Who may connect. `may` says what for, in words that follow on the name."""

    name: str
    password: str
    may: str


class SandboxServer(AbstractContextManager["SandboxServer"], ABC):
    """See the module's docstring. The block starts the server and removes it."""

    #: What people know it by.
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
        """Make what a target needs, such as the database that an address names."""

    @property
    def address(self) -> str:
        return f"{self.server.host}:{self.server.port}"

    @property
    def version(self) -> str:
        """The server's own name and version."""
        return self.title

    @property
    @abstractmethod
    def url(self) -> str:
        """Return the URL for clients."""

    def preview_code(self, database: str, table: str) -> str:
        """Python that prints a few rows of a table, or whatever it is there; raycdc's own packages are enough."""
        return ""

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that the commands below need."""
        return {}

    @property
    def as_sink(self) -> Mapping[str, str]:
        """Keys of ``[sink]`` for this server, secrets by reference; none of a server that is no target."""
        return {}

    @property
    def piece(self) -> str:
        """Sections of a configuration, for a server that ``raycdc init`` does not ask about."""
        return ""


class SandboxSourceServer(SandboxServer):
    """A trial server with the shop's tables `COMPARED`."""

    @property
    @abstractmethod
    def as_source(self) -> Mapping[str, str | int | Sequence[str]]:
        """Keys of ``[source]`` for the whole shop, secrets by reference."""

    @property
    @abstractmethod
    def init_words(self) -> Sequence[str]:
        """Options of ``raycdc init`` for the whole shop."""

    @abstractmethod
    def fill(self, size: ShopSize) -> None:
        """Make the shop; once."""

    def alter(self) -> None:
        """Change the columns of a table, where the server knows columns. Not while another thread is in `step`."""

    @abstractmethod
    def step(self) -> None:
        """One transaction of a customer. Used from one thread at a time."""

    @abstractmethod
    def summary(self) -> str:
        """What the steps did so far, in words."""

    @abstractmethod
    def held(self, table: str) -> dict[int, str]:
        """The rows of a table by their keys: the value of the column `COMPARED` names, as text."""


def typed(words: Sequence[str], indent: str = "  ") -> list[str]:
    """A command in lines of at most 80 columns that can be copied as they are; an option stays with its value."""
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
    """A program of this installation, as it is typed here."""
    found = shutil.which(name)
    folder = Path(sys.executable).parent
    if found is not None and Path(found).parent == folder:
        return name
    if folder.is_relative_to(Path.cwd()):
        folder = folder.relative_to(Path.cwd())
    return str(folder / name)


def python_command(code: str) -> list[str]:
    """A command that runs Python `code`, in lines that can be copied as they are."""
    return [f"{program('python')} -c '", *code.splitlines(), "'"]
