"""What a story is: statements of a DBA on one table, and what must have become of its target.

Stories are literals (`stories_*.py`); `player` plays all of a server and sink in one run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import assert_never


class Server(StrEnum):
    """A kind of source."""

    MARIADB = "mariadb"
    MYSQL80 = "mysql80"


class Sink(StrEnum):
    """A kind of target, as ``sink.type`` says it, but for the database."""

    DELTA = "delta"
    JSONL = "jsonl"
    POSTGRES = "postgres"


class Mode(StrEnum):
    """How the pipeline runs while the statements are given."""

    #: It does not: the statements are in the log when it starts again.
    LATER = "later"
    LIVE = "live"
    #: As `LATER`, with Ray and Spark.
    CLUSTER = "cluster"
    #: As `LATER`, and the configuration does not say ``schema_change``: columns stay that the source drops.
    LENIENT = "lenient"


@dataclass(frozen=True, slots=True)
class Equal:
    """The target has the source's rows and columns, and the table was followed throughout.

    `whole`: from the statement that made it, so that a changelog begins with its first row and not with what was there
    later.
    """

    whole: bool = False


@dataclass(frozen=True, slots=True)
class Again:
    """The table began again by itself, and its target has the source's rows and columns."""


@dataclass(frozen=True, slots=True)
class Told:
    """A changelog has every change, each in the shape that its table had: lines from before a statement keep theirs.

    So the keys are the source's, and the newest line is the row that it is of.
    """


@dataclass(frozen=True, slots=True)
class Parked:
    """The table is parked with `word` in the reason; after `mend` (statements) and what is advised it is `Equal`."""

    word: str
    mend: str = ""
    advice: str = "resnapshot"


@dataclass(frozen=True, slots=True)
class Ends:
    """The run ends with `code` and `word`, as its configuration wants it; without that it goes on, to `then`."""

    word: str
    code: int = 4
    then: Equal | Parked = field(default_factory=Equal)


@dataclass(frozen=True, slots=True)
class Gone:
    """The source has no such table any more; its target is left with no rows."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The table left under another name; its target stays as it was with this many rows."""

    rows: int


@dataclass(frozen=True, slots=True)
class Absent:
    """There is neither a target nor a table that is followed."""


Expectation = Equal | Again | Told | Parked | Ends | Gone | Kept | Absent

#: A table that comes while the pipeline stands still is followed from then on, as one that comes while it runs.
WHOLE = Equal(whole=True)
EQUAL, AGAIN, TOLD, GONE, ABSENT = Equal(), Again(), Told(), Gone(), Absent()


@dataclass(frozen=True, slots=True)
class Lenient:
    """What the manual says of ``schema_change = "lenient"`` where a story drops or renames columns, row by row.

    `stays` has each column that the source no longer has, with its type: the values by id that rows have kept, as
    nothing was written to them since; all other rows have null. A renamed column has the source's values.
    """

    stays: Mapping[str, tuple[str, Mapping[int, int | str]]] = field(default_factory=dict)
    #: The sinks where it holds: files have the columns of their rows.
    sinks: tuple[Sink, ...] = (Sink.DELTA, Sink.POSTGRES)
    #: Where something else must come of the story.
    where: Mapping[Sink, Expectation] = field(default_factory=dict)


#: The table of a story that does not say otherwise, and its rows.
PLAIN = """
    CREATE TABLE {t} (id INT PRIMARY KEY, a INT, b VARCHAR(40))
    INSERT INTO {t} VALUES (1, 10, 'one'), (2, 20, 'two'), (3, NULL, NULL), (4, 40, 'four'), \
        (5, 50, 'fünf'), (6, 60, '')
"""

#: Where a thing holds: on a server, into a sink, or for both together.
Place = Server | Sink | tuple[Server, Sink]


@dataclass(frozen=True, slots=True)
class Story:
    """One table's life. SQL has one statement a line (``{newline}`` breaks one); ``{t}`` is the captured table, ``{x}``
    one that is not captured;
    ``{gho}``, ``{del}``, ``{new}`` and ``{old}`` are called as gh-ost and pt-online-schema-change call theirs.

    `setup` is there before the first run; `statements` are given when that has ended. Around them the player deletes
    and changes keys of rows with the ids 6 and 5, unless the table has no such key (`touch`).
    """

    name: str
    statements: str
    expect: Expectation = EQUAL
    setup: str = PLAIN
    #: Where the expectation is another one.
    where: Mapping[Place, Expectation] = field(default_factory=dict)
    #: Servers that know the statements.
    servers: tuple[Server, ...] = (Server.MARIADB, Server.MYSQL80)
    touch: bool = True
    #: The columns by which rows of a changelog are told apart; none: by all of them.
    key: tuple[str, ...] = ("id",)
    #: The table's name, where that is the story; ``s_NAME`` otherwise. Beside it the pattern that selects it.
    table: str = ""
    pattern: str = ""
    #: Columns that a sink's targets have under another name.
    renamed: Mapping[Sink, Mapping[str, str]] = field(default_factory=dict)
    #: Under the default behaviour, where targets then have other columns than the source.
    lenient: Lenient = field(default_factory=Lenient)
    #: A run of its own, with further keys of ``[pipeline]``.
    alone: bool = False
    pipeline: str = ""
    #: Only in the suite ``blackbox``, wherever it is played.
    long: bool = False
    #: A fault of the issue that is not mended yet, by place (or everywhere, as the text alone).
    awaits: Mapping[Place, str] | str = field(default_factory=dict)

    @property
    def captured(self) -> str:
        """Name of the captured table."""
        return self.table or f"s_{self.name}"

    def sql(self, text: str) -> list[str]:
        """The statements of a text with the story's names in them."""
        lines = [line.strip().replace("{newline}", "\n") for line in text.strip().splitlines()]
        names = {"t": self.captured, "x": f"x_{self.name}"}
        names |= {word: f"_{self.captured}_{word}" for word in ("gho", "del", "new", "old")}
        for short, name in names.items():
            lines = [line.replace(f"{{{short}}}", _quoted(name)) for line in lines]
        return [line for line in lines if line]

    def expected(self, server: Server, sink: Sink, mode: Mode) -> Expectation:
        """What must come of it there; the narrower place wins."""
        if mode is Mode.LENIENT and sink in self.lenient.where:
            return self.lenient.where[sink]
        places: tuple[Place, ...] = ((server, sink), sink, server)
        return next((self.where[place] for place in places if place in self.where), self.expect)

    def awaited(self, server: Server, sink: Sink) -> str:
        """The fault that makes it fail there; empty if none does."""
        if isinstance(self.awaits, str):
            return self.awaits
        places: tuple[Place, ...] = ((server, sink), sink, server)
        return next((self.awaits[place] for place in places if place in self.awaits), "")


def described(expectation: Expectation) -> str:
    """The expectation in words, for a failing test."""
    match expectation:
        case Equal():
            return "equal to the source"
        case Again():
            return "begun again and equal to the source"
        case Told():
            return "told as a changelog"
        case Parked(word=word):
            return f"parked with {word!r} in the reason"
        case Ends(word=word):
            return f"the end of the run, with {word!r}"
        case Gone():
            return "empty, as its table is gone"
        case Kept(rows=rows):
            return f"left with its {rows} rows"
        case Absent():
            return "not there"
        case _:
            assert_never(expectation)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
