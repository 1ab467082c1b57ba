"""The page ``errors``: every named error with its exit code, cause and remedy, from the docstring of its class."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from raycdc.cli.pages.markdown import table
from raycdc.errors import ExitCode, ParkReason, RaycdcError, TableRefusedError
from raycdc.state.parked import WAYS_OUT

#: The modules that define named errors.
MODULES = (
    "raycdc.errors",
    "raycdc.state.commits.record_bases",
    "raycdc.connectors.mysql.binlog.wire.log_dump",
    "raycdc.connectors.mysql.server.checks",
    "raycdc.connectors.mysql.ddl.alter",
    "raycdc.connectors.mysql.ddl.follow.history",
    "raycdc.connectors.mysql.server.mariadb_log",
    "raycdc.connectors.mysql.snapshot.planning.chunks",
    "raycdc.formats.api",
    "raycdc.sinks.mongodb.documents",
    "raycdc.spark.artifacts",
)

_BEGIN = """# Errors and exit codes

A command that fails prints one paragraph: what happened, where, and what to do. That text knows more than this page,
which has the classes behind the texts: `raycdc run --json` names them (`"event": "error"`), and so does a log. The exit
code is the command's. *Again* says that a run tries it again by itself, for up to five minutes, before it ends.

`raycdc docs troubleshooting` is sorted by symptom, and describes the automatic reaction to each.

## Exit codes

| code | meaning |
|---|---|
| 0 | done; also ended in order by SIGTERM, as systemd and Kubernetes do |
| 1 | a bug in raycdc; the traceback is shown |
| 2 | the configuration is wrong; all its problems are listed |
| 3 | the source cannot be reached, or does not permit what is needed |
| 4 | data or a schema that cannot be handled |
| 5 | the sink refused |
| 6 | the state cannot be used; also ended because another driver took it over (`FencedError`) |
| 7 | Ray was lost, or did not start; the next run goes on from what was sealed |
| 8 | `verify` found rows that differ |
| 9 | `verify` found none, but could not compare a table |
| 130 | interrupted with Ctrl-C; nothing is lost |"""

_PARKED = """## Errors that park a table

They end no run: the table is parked, the others go on, and `raycdc tables list` has the reason and the text. `--until
caught-up` ends with 4 once the others are done; with `pipeline.on_table_error = "fail"` every run ends at once, with
the code below. After the cure, `raycdc tables resnapshot` begins the table anew."""

_CODES = {
    ExitCode.BUG: "a bug in raycdc, or something that nobody has named",
    ExitCode.CONFIG: "the configuration",
    ExitCode.SOURCE: "the source",
    ExitCode.DATA: "data and schemas",
    ExitCode.SINK: "the target",
    ExitCode.STATE: "the state",
    ExitCode.CLUSTER: "the Ray cluster",
}


def errors_page() -> str:
    """Return the text of the page."""
    known = list(named_errors())
    parking = [error for error in known if issubclass(error, TableRefusedError) and error is not TableRefusedError]
    parts = [_BEGIN]
    for exit_code, about in _CODES.items():
        own = [error for error in known if error.exit_code is exit_code and not issubclass(error, TableRefusedError)]
        rows = [(f"`{e.__name__}`", cause(e), "yes" if e.retryable else "", e.cure) for e in own]
        parts += [f"## Exit code {exit_code.value}: {about}", table(("error", "it means", "again", "what to do"), rows)]
    parts += [_PARKED, table(("error", "exit code", "reason", "it means", "what to do"), map(_parking, parking))]
    reasons = [(f"`{reason}`", f"{WAYS_OUT[reason]}.") for reason in ParkReason]
    parts += ["As `raycdc tables list` says the way out, by the reason:", table(("reason", "way out"), reasons)]
    return "\n\n".join(parts) + "\n"


def named_errors() -> Iterator[type[RaycdcError]]:
    """Yield every error class of raycdc, base classes before derived ones."""
    for module in MODULES:
        importlib.import_module(module)
    yield from _below(RaycdcError, set())


def _below(error: type[RaycdcError], seen: set[type[RaycdcError]]) -> Iterator[type[RaycdcError]]:
    """Return the classes derived from `error`, except those in `seen`, in an order that does not depend on imports."""
    here = [each for each in error.__subclasses__() if each.__module__ in MODULES and each not in seen]
    for each in sorted(here, key=lambda each: MODULES.index(each.__module__)):
        seen.add(each)
        yield each
        yield from _below(each, seen)


def cause(error: type[RaycdcError]) -> str:
    """Return the class's description: its docstring's first paragraph."""
    first = (error.__doc__ or "").strip().partition("\n\n")[0]
    return " ".join(first.split())


def _parking(error: type[TableRefusedError]) -> tuple[str, ...]:
    return f"`{error.__name__}`", str(error.exit_code.value), f"`{error.reason}`", cause(error), error.cure
