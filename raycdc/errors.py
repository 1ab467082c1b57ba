"""Every error that a user can meet, typed by the reaction that it asks for and the exit code of the command.

The CLI catches `RaycdcError` and nothing else: its text is the whole screen (no traceback unless ``--verbose``)
and its `exit_code` the process's. Anything that is not a `RaycdcError` is a bug and shows its traceback.

A message says what happened, where, and what to do, in that order:
``binlog.000007:4512 is purged on db1:3306 (oldest is .000011). Take a new snapshot with ...``.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """Exit codes of every command; a promise to scripts (README, "Exit codes")."""

    DONE = 0
    BUG = 1
    CONFIG = 2
    SOURCE = 3
    DATA = 4
    SINK = 5
    STATE = 6
    CLUSTER = 7
    DIFFERENT = 8
    UNVERIFIED = 9
    INTERRUPTED = 130


class RaycdcError(Exception):
    """Base of all named errors. ``str(error)`` is one self-contained paragraph for the user."""

    exit_code: ClassVar[ExitCode] = ExitCode.BUG
    #: True where trying the same again later may succeed without anyone acting (a server restarting).
    retryable: ClassVar[bool] = False


class ConfigError(RaycdcError):
    """The configuration is wrong. Holds every problem found, not only the first."""

    exit_code = ExitCode.CONFIG

    def __init__(self, *problems: str) -> None:
        self.problems: tuple[str, ...] = problems
        super().__init__("\n".join(problems))


class SourceError(RaycdcError):
    """The source refused us or cannot serve us: wrong password, missing privilege, unsuitable setting."""

    exit_code = ExitCode.SOURCE


class SourceUnavailableError(SourceError):
    """The source cannot be reached now (connection refused or lost); worth trying again."""

    retryable = True


class LogLostError(SourceError):
    """The position we need is no longer in the source's log (purged or reset)."""


class DataError(RaycdcError):
    """A row, message or log event cannot be decoded or does not fit the schema; nothing of it was passed on."""

    exit_code = ExitCode.DATA


class CorruptLogError(DataError):
    """A log file or stream is damaged or truncated; the text names file and position."""


class PartialRowsError(DataError):
    """Rows of the log lack columns (a row image that is not FULL), whose values the log does not have anywhere."""


class SchemaError(DataError):
    """A schema and the data (or a DDL statement and our model of it) do not fit each other."""


class TableChangedError(SchemaError):
    """A table is not as the log has described it so far: it was changed meanwhile, and the log says so further on."""


class StatementError(SchemaError):
    """A DDL statement cannot be followed for `tables`, as (db, table), and for all tables of `databases`."""

    def __init__(self, why: str, *, tables: tuple[tuple[str, str], ...] = (), databases: tuple[str, ...] = ()) -> None:
        self.tables = tables
        self.databases = databases
        super().__init__(why)


class SinkError(RaycdcError):
    """The sink refused a write or its state contradicts ours."""

    exit_code = ExitCode.SINK


class SinkUnavailableError(SinkError):
    """The sink cannot be reached now, or has no time for us: a server that restarts, a lock that somebody holds."""

    retryable = True


class ParkReason(StrEnum):
    """Why a target's part of a sealed epoch cannot be committed; the table is parked for no other reason.

    Each member has its error class (`TableRefusedError`) and its way out (`raycdc.checkpoint.parked`).
    """

    CHANGE = "change"
    COLUMNS = "columns"
    NAME = "name"
    KEY = "key"
    VALUE = "value"
    TAKEN = "taken"
    GONE = "gone"
    TOUCHED = "touched"
    RULES = "rules"


class TableRefusedError(RaycdcError):
    """One table's share of an epoch cannot be written, and the other tables' can: that table is parked.

    It is raised only where it is known that nothing but this one table is concerned; a sink that does not answer, a
    full disk or a bug is no such error. Handlers catch the subclasses, so each of them has its reason.
    """

    reason: ClassVar[ParkReason]


class ChangeRefusedError(TableRefusedError, SinkError):
    """The target cannot follow a schema change of the table, or the user does not want it to."""

    reason = ParkReason.CHANGE


class ColumnsRefusedError(TableRefusedError, SinkError):
    """The target cannot have such columns, or cannot have the layout that is asked for."""

    reason = ParkReason.COLUMNS


class NameRefusedError(TableRefusedError, SinkError):
    """The sink cannot have a table of this name."""

    reason = ParkReason.NAME


class KeyRefusedError(TableRefusedError, SinkError):
    """The target cannot tell the table's rows apart."""

    reason = ParkReason.KEY


class OriginsRefusedError(TableRefusedError, DataError):
    """A key of a merged target comes from two tables, or from two rows of one."""

    reason = ParkReason.KEY


class ValueRefusedError(TableRefusedError, SinkError):
    """The target cannot hold a value of a row."""

    reason = ParkReason.VALUE


class ReferenceRefusedError(ValueRefusedError):
    """A row refers to one that another table's target does not have, or is referred to from there: the other table's
    share of the epoch may have to be written first.
    """


class RowRefusedError(TableRefusedError, DataError):
    """A transform, lookup or conversion of a row on its way to the target fails on a value of the row."""

    reason = ParkReason.VALUE


class TargetTakenError(TableRefusedError, SinkError):
    """Something that does not belong to this pipeline lies at the target's place."""

    reason = ParkReason.TAKEN


class TargetGoneError(TableRefusedError, SinkError):
    """The target was deleted, swapped or restored from an older copy."""

    reason = ParkReason.GONE


class TargetTouchedError(TableRefusedError, SinkError):
    """Somebody else changed the target so that nothing more can be written to it exactly."""

    reason = ParkReason.TOUCHED


class RulesRefusedError(TableRefusedError, SchemaError):
    """A transform, lookup, mask or route does not fit the table as it is now."""

    reason = ParkReason.RULES


class RoutesRefusedError(TableRefusedError, ConfigError):
    """The configuration asks for something of the target that the sink cannot do for it."""

    reason = ParkReason.RULES


class StateError(RaycdcError):
    """The checkpoint cannot be read, is newer than we are, or is in use by another process."""

    exit_code = ExitCode.STATE


class SpoolError(StateError):
    """A segment cannot be written now, mostly because the disk is full; commits or people may make room."""

    retryable = True


class SegmentUnavailableError(StateError):
    """The node that has a segment does not answer now; its server may be starting again."""

    retryable = True


class ClusterLostError(RaycdcError):
    """Ray's head is gone, and every process of the run but this one with it. A new run goes on from the last seal.

    `what` was seen, and `advice` says what to do.
    """

    exit_code = ExitCode.CLUSTER

    def __init__(self, what: str, advice: str = "") -> None:
        self.what, self.advice = what, advice
        super().__init__(f"{what} {advice}".strip())


class ProtocolError(RaycdcError):
    """A message between coordinator and reader is unknown, malformed or out of turn. Always a bug."""


class OutOfPlaceError(RaycdcError):
    """A batch of a split does not begin where the rows before it end; nothing of it was passed on. Always a bug."""


class RowsNotPrintedError(RaycdcError):
    """An inspecting command decoded more rows than it printed, or fewer. Always a bug."""


class UnexpectedError(RaycdcError):
    """An error that nobody has named, in a process that works for a run; the text says where in the code it is.

    `lasting`: it is of a kind that comes again however often the same is tried. `trace` is its traceback.
    """

    def __init__(self, text: str, *, lasting: bool = False, trace: str = "") -> None:
        super().__init__(text)
        self.lasting = lasting
        self.trace = trace


class FencedError(RaycdcError):
    """The process was replaced (newer incarnation or generation exists) and must stop; its work is not accepted."""

    exit_code = ExitCode.STATE


def error_by_name(name: str) -> type[RaycdcError]:
    """The error class called `name`, for errors that crossed a process boundary as (name, text).

    An unknown name gives `RaycdcError`, so that an error from a plug-in still ends the command with its text.
    """
    pending: list[type[RaycdcError]] = [RaycdcError]
    while pending:
        candidate = pending.pop()
        if candidate.__name__ == name:
            return candidate
        pending.extend(candidate.__subclasses__())
    return RaycdcError
