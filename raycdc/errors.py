"""Every error that a user can meet. Each class has an exit code, and determines the reaction to the error.

The CLI catches `RaycdcError` and nothing else: its text is the whole screen (no traceback unless ``--verbose``) and its
`exit_code` becomes that of the process. Anything that is not a `RaycdcError` is a bug and shows its traceback.

A message says what happened, where, and what to do, in that order: ``binlog.000007:4512 is purged on db1:3306 (oldest
is .000011). Take a new snapshot with ...``.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """Exit codes of every command; a promise to scripts (`raycdc docs errors`)."""

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


#: The general advice for an error that is a bug.
REPORT = "Run the command again with `--verbose`, and report what it shows: it is a bug in raycdc."


class RaycdcError(Exception):
    """Base of all named errors. ``str(error)`` is one self-contained paragraph for the user."""

    exit_code: ClassVar[ExitCode] = ExitCode.BUG
    #: True if the same attempt may succeed later although nobody acts, for example when a server is restarting.
    retryable: ClassVar[bool] = False
    #: General advice for the manual's page of errors; the text of an error is more specific.
    cure: ClassVar[str] = REPORT


class ConfigError(RaycdcError):
    """The configuration is wrong. Holds every problem found, not only the first."""

    exit_code = ExitCode.CONFIG
    cure = "Correct each key that the text names; `raycdc docs options` describes all keys."

    def __init__(self, *problems: str) -> None:
        self.problems: tuple[str, ...] = problems
        super().__init__("\n".join(problems))


class EngineNotStartedError(ConfigError):
    """Spark did not start for a reason other than its configuration: its JVM was ended, or a download failed.

    A run that began in the driver's process tries again later; a run that needs Spark from the start ends.
    """

    cure = (
        "Check what the text names: the machine's memory (`spark.conf` may give Spark less), or its access to Maven's "
        "repository. Then run the same command again."
    )


class SourceError(RaycdcError):
    """The source refused us or cannot serve us: wrong password, missing privilege, unsuitable setting."""

    exit_code = ExitCode.SOURCE
    cure = (
        "Change at the source what the text names, such as a GRANT, a setting or a password. `raycdc check` shows it, "
        "too."
    )


class SourceUnavailableError(SourceError):
    """The source cannot be reached now (connection refused or lost); worth trying again."""

    retryable = True
    cure = "Start the source again, or correct its address. The same command then continues."


class TableLockedError(SourceUnavailableError):
    """A session at the source holds a lock on a table, so its rows cannot be read now. Other tables can be read."""

    cure = "End the statement or session that holds the lock, or wait: the table is read when the lock is released."


class LogLostError(SourceError):
    """The source's log cannot be read from our position: it was purged, reset, damaged or replaced by another log."""

    cure = (
        "Let the source keep its log for longer, and take a new snapshot: of one table with `raycdc tables "
        "resnapshot`, of all tables with `pipeline.on_log_lost`."
    )


class DataError(RaycdcError):
    """A row, message or log event cannot be decoded or does not fit the schema; nothing of it was passed on."""

    exit_code = ExitCode.DATA
    cure = (
        "Correct the row or message at its source, or set a policy: `pipeline.on_bad_record`, `on_error` of a format, "
        "or `source.types`."
    )


class CorruptLogError(DataError):
    """A log file or stream is damaged or truncated; the text names file and position."""

    cure = (
        "Inspect that position with `raycdc inspect binlog`. If the server's own file is damaged, purge the log up to "
        'the next file, and take new snapshots of all tables with `pipeline.on_log_lost = "resnapshot"`.'
    )


class PartialRowsError(DataError):
    """Rows of the log lack columns (a row image that is not FULL), whose values the log does not have anywhere."""

    cure = "Set `binlog_row_image=FULL` at the server, for all sessions, and take a new snapshot of the table."


class SchemaMismatchError(DataError):
    """Rows of a table do not match its schema.

    They have other columns or labels, keys that are equal in Unicode but differ in bytes, or values that `source.types`
    does not accept. The table is parked; the other tables go on.
    """

    cure = "See with `raycdc tables list` what does not match, correct it, and take a new snapshot of the table."


class SchemaError(DataError):
    """A schema and the data (or a DDL statement and our model of it) do not fit each other."""

    cure = "See with `raycdc tables list` what does not match, correct it, and take a new snapshot of the table."


class TableChangedError(SchemaError):
    """A table differs from the schema that the log has described so far; its change stands further on in the log."""

    cure = "Nothing: the table is read again once the log has reached the change."


class StatementError(SchemaError):
    """A DDL statement cannot be followed.

    It concerns `tables`, given as (db, table), and all tables of `databases`.
    """

    cure = "Take a new snapshot of the tables that the text names: `raycdc tables resnapshot`."

    def __init__(self, why: str, *, tables: tuple[tuple[str, str], ...] = (), databases: tuple[str, ...] = ()) -> None:
        self.tables = tables
        self.databases = databases
        super().__init__(why)


class SinkError(RaycdcError):
    """The sink refused a write, or its content contradicts our state."""

    exit_code = ExitCode.SINK
    #: The statement that a database refused; empty for any other error.
    refused_statement = ""
    cure = "Change at the target what the text names, and start again. Sealed epochs are then written."


class SinkUnavailableError(SinkError):
    """The sink cannot be reached or used now: for example its server restarts, or another client holds a lock."""

    retryable = True
    cure = "Start the target's server again, or end the session that holds a lock. The same command then continues."


class SinkLockedError(SinkUnavailableError):
    """Another client has held a lock at the sink, of one target or of several, for longer than we wait."""

    cure = "End the session that holds the lock, or wait: the write is retried, and succeeds once the lock is released."


class SparkLostError(SinkUnavailableError):
    """Spark's JVM ended in the middle of its work. It is started again, and the work is repeated."""

    cure = (
        "Nothing, if it happened once. If Spark's memory is too small, give it more (`spark.driver.memory` in "
        "`spark.conf`), or run less on the machine."
    )


class ParkReason(StrEnum):
    """Why a target's part of a sealed epoch cannot be committed; the table is parked for no other reason.

    Each member has its error class (`TableRefusedError`) and its way out (`raycdc.state.parked`).
    """

    CHANGE = "change"
    COLUMNS = "columns"
    NAME = "name"
    KEY = "key"
    VALUE = "value"
    TAKEN = "taken"
    MISSING = "gone"
    MODIFIED = "touched"
    BLOCKED = "blocked"
    RULES = "rules"


class TableRefusedError(RaycdcError):
    """One table's rows of an epoch cannot be written while other tables' can; that table is parked.

    Raise it only if the cause certainly concerns this one table: a sink that does not answer, a full disk or a bug is a
    different error. Handlers catch the subclasses, and each subclass has its own reason.
    """

    reason: ClassVar[ParkReason]
    #: How to resume the table, if that differs from the usual advice for the reason; here a new snapshot alone would
    #: fail in the same way.
    way_out: ClassVar[str] = ""
    #: True if the target may have rows of the epoch all the same, because it has no transaction for the whole of it.
    partly_written = False
    cure = "See `raycdc tables list` for the reason and what to do."


class ChangeRefusedError(TableRefusedError, SinkError):
    """The target cannot follow a schema change of the table, or the user does not want it to."""

    reason = ParkReason.CHANGE
    cure = (
        "Take a new snapshot of the table, which gives an upsert target the present columns, or choose another "
        "`pipeline.schema_change`."
    )


class ColumnsRefusedError(TableRefusedError, SinkError):
    """The target does not support these columns, or the layout that is configured."""

    reason = ParkReason.COLUMNS
    cure = (
        "Choose, rename or cast the columns that the text names with a `[[transform]]`, or change them at the source."
    )


class NameRefusedError(TableRefusedError, SinkError):
    """The sink cannot have a table of this name."""

    reason = ParkReason.NAME
    cure = "Give the table another name in the sink with a `[[route]]`."


class KeyRefusedError(TableRefusedError, SinkError):
    """The target cannot tell the table's rows apart."""

    reason = ParkReason.KEY
    cure = "Give the table a primary key, or declare one with a `[[transform]]`; a changelog needs none."


class MergedKeyRefusedError(TableRefusedError, DataError):
    """A key of a merged target comes from two tables, or from two rows of one."""

    reason = ParkReason.KEY
    cure = "Make the keys of the merged tables differ, or change one of the two rows that have the same key."


class ValueRefusedError(TableRefusedError, SinkError):
    """The target cannot hold a value of a row."""

    reason = ParkReason.VALUE
    cure = (
        "Correct the value at the source, change the column's type, or set `pipeline.on_bad_record`; then take a new "
        "snapshot."
    )


class ReferenceRefusedError(ValueRefusedError):
    """A foreign key blocks a row: it refers to a row that another table's target lacks, or such a row refers to it.

    The other table's rows of the epoch may have to be written first.
    """

    cure = "Capture the referenced table as well, or drop the foreign key at the target."


class RowRefusedError(TableRefusedError, DataError):
    """A transform, lookup or conversion of a row on its way to the target fails on a value of the row."""

    reason = ParkReason.VALUE
    cure = "Correct the row or the expression, or set `pipeline.on_bad_record`; then take a new snapshot of the table."


class TargetExistsError(TableRefusedError, SinkError):
    """Something that does not belong to this pipeline exists at the target's location."""

    reason = ParkReason.TAKEN
    cure = "Move the existing target away, or set `pipeline.on_existing` to merge into it or to replace it."


class TargetDroppedError(TableRefusedError, SinkError):
    """The target was deleted, swapped or restored from an older copy."""

    reason = ParkReason.MISSING
    cure = "Take a new snapshot of the table, which creates the target again, or restore the target as it was."


class TargetModifiedError(TableRefusedError, SinkError):
    """Another client changed the target in a way that makes exact writes impossible."""

    reason = ParkReason.MODIFIED
    cure = "Undo the change that the text names, or delete the target; then take a new snapshot of the table."


class TargetForbiddenError(TargetModifiedError):
    """The account lacks a permission at the target, or a view has the target's name. A new snapshot does not help."""

    way_out = "Permit what the text says, or move away what it names"
    cure = "Grant the permission that the text names, or remove the view; then take a new snapshot of the table."


class TargetBlockedError(TableRefusedError, SinkError):
    """One target accepted no write for minutes while others of its sink answer.

    Another client has it locked, or the server or catalog fails for this target only.
    """

    reason = ParkReason.BLOCKED
    cure = (
        "End the session that has the target locked, or repair its server or catalog; then take a new snapshot of the "
        "table."
    )


class RulesRefusedError(TableRefusedError, SchemaError):
    """A transform, lookup, mask or route does not fit the table's current columns."""

    reason = ParkReason.RULES
    cure = "Change the `[[transform]]`, `[[lookup]]`, `[[mask]]` or `[[route]]` that the text names, or the table."


class RoutesRefusedError(TableRefusedError, ConfigError):
    """The configuration asks for something of the target that the sink cannot do for it."""

    reason = ParkReason.RULES
    cure = "Change the `[[route]]` or the option that the text names to one that the sink supports."


class StateError(RaycdcError):
    """The checkpoint cannot be read, was written by a newer version, or is in use by another process."""

    exit_code = ExitCode.STATE
    cure = "See with `raycdc state check` what is wrong with the state, and follow its last line."


class SpoolError(StateError):
    """A segment cannot be written now, mostly because the disk is full. Commits, or the user, may free space."""

    retryable = True
    cure = "Free space on the disk that the text names. The same command then continues."


class SegmentUnavailableError(StateError):
    """The node that has a segment does not answer now; its server may be starting again."""

    retryable = True
    cure = "Start the node again. If it is lost, its rows are read again from the source."


class ClusterLostError(RaycdcError):
    """Ray's head is gone, with every process of the run except this one.

    A new run continues from the last sealed epoch.

    `what` says what was observed, `advice` what to do.
    """

    exit_code = ExitCode.CLUSTER
    cure = "Start the Ray cluster again, and run the same command, which continues from the last sealed epoch."

    def __init__(self, what: str, advice: str = "") -> None:
        self.what, self.advice = what, advice
        super().__init__(f"{what} {advice}".strip())


class ClusterNotStartedError(RaycdcError):
    """Ray, or a process that the run needs on it, did not start within the time that busy machines take.

    A run that began in the driver's process tries again later; any other run ends and loses nothing.
    """

    exit_code = ExitCode.CLUSTER
    cure = (
        "Check with `ray status` and Ray's logs what the text names: no cluster, a node without memory or room for "
        "another process, or an overloaded machine. Then run the same command again."
    )


class ProtocolError(RaycdcError):
    """A message between coordinator and reader is unknown, malformed or out of turn.

    Such an error is always a bug.
    """

    cure = REPORT


class OutOfOrderError(RaycdcError):
    """A batch of a split does not begin where the rows before it end; nothing of it was passed on.

    Such an error is always a bug.
    """

    cure = REPORT


class RowsNotPrintedError(RaycdcError):
    """An inspecting command decoded more rows than it printed, or fewer. Such an error is always a bug."""

    cure = REPORT


class UnexpectedError(RaycdcError):
    """An unexpected error in a process of the run.

    `lasting` is True if a retry would raise it again; `trace` is its traceback.

    The text says where in the code the error was raised.
    """

    cure = (
        "Run the command again with `--verbose`, and report what it shows. If the text names an external cause, such "
        "as memory or a disk, fix that."
    )

    def __init__(self, text: str, *, lasting: bool = False, trace: str = "") -> None:
        super().__init__(text)
        self.lasting = lasting
        self.trace = trace


class FencedError(RaycdcError):
    """The process was replaced (newer incarnation or generation exists) and must stop; its work is not accepted."""

    exit_code = ExitCode.STATE
    cure = "Nothing, if another driver took the pipeline over; `raycdc status` shows which one."


def error_by_name(name: str) -> type[RaycdcError]:
    """Return the error class called `name`, for errors that crossed a process boundary as (name, text).

    An unknown name gives `RaycdcError`, so that an error from a plug-in still ends the command with its text.
    """
    pending: list[type[RaycdcError]] = [RaycdcError]
    while pending:
        candidate = pending.pop()
        if candidate.__name__ == name:
            return candidate
        pending.extend(candidate.__subclasses__())
    return RaycdcError
