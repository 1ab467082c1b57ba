"""What is known of the suite: reasons that park a table rightly, and faults that are not mended yet.

The list of faults may only become shorter. A fault that is mended leaves it in the same commit: an entry that does not
occur any more, although its script was played, is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tests.suites.following import Batch, Verdict

#: A table that is parked with one of these is told rightly why, and what to do.
NAMED_REASONS = tuple(
    map(
        re.compile,
        (
            r"this statement cannot be followed: \w+ is not followed",
            r"is stored COMPRESSED, (and so it is in the log|which the log keeps compressed)",
            r"a foreign key changes rows of this table by cascade",
            r"has type '[^']*', which is not supported",
            r"has the character set '[^']*', which is not supported",
            r"rows that are written through a MERGE table under that table's name",
            r"cannot be read: .* answered error \d+ \(Tablespace has been discarded",
            r"'_\w+' cannot be a folder of [^,]+, because it begins with '_', by which readers of folders pass over it",
            r"other values of the VIRTUAL column '[^']+' than the table, because it reads an AUTO_INCREMENT column",
            r"the key column '[^']+' is a YEAR\(2\), which prints the same two digits for several years",
        ),
    )
)


#: Named as well, where the script itself has its sessions log statements.
_STATEMENT = "was logged as a statement, not as rows"


@dataclass(frozen=True, slots=True)
class Fault:
    """Tables of a script that differ, or park for a reason that is not true. Both may have ``*``."""

    script: str
    table: str
    reason: str

    def covers(self, verdict: Verdict) -> bool:
        """Whether the table is one of it."""
        table = verdict.table.partition(".")[2]
        return fnmatchcase(verdict.script, self.script) and fnmatchcase(table, self.table)


_SESSION = "a VIRTUAL column by session variables has no value of its own: each reader computes another one"
_CZECH = "latin2_czech_cs does not convert the control characters 7F to 9F, which other collations of latin2 do"
FAULTS: tuple[Fault, ...] = (
    Fault("vcol/not_supported", "*", _SESSION),
    Fault("funcs_2/*_charset", "*", _CZECH),
)


def unexpected(batch: Batch, faults: Sequence[Fault] = FAULTS) -> list[str]:
    """What is wrong with a batch beyond the known faults, as lines to read; empty if nothing is."""
    lines = [f"a run ended: {ended}" for ended in batch.ended]
    lines += [f"the log is read otherwise: {problem}" for problem in batch.read_otherwise]
    switched = {played.script.name for played in batch.played if "binlog_format" in played.script.text.lower()}
    wrong = [
        verdict
        for verdict in batch.verdicts
        if verdict.problems
        or not (_is_named(verdict.parked) or (verdict.script in switched and _STATEMENT in verdict.parked))
    ]
    for verdict in wrong:
        if not any(fault.covers(verdict) for fault in faults):
            told = verdict.problems or (f"parked without a true reason: {verdict.parked}",)
            lines += [f"{verdict.script}: {verdict.table}: {problem}" for problem in told]
    lines += [
        f"{fault.script}: {fault.table} is no fault any more: {fault.reason}" for fault in _gone(batch, wrong, faults)
    ]
    return lines


def _is_named(parked: str) -> bool:
    return not parked or any(reason.search(parked) for reason in NAMED_REASONS)


def _gone(batch: Batch, wrong: Iterable[Verdict], faults: Sequence[Fault]) -> list[Fault]:
    """Faults that did not occur in a batch that has all of their scripts."""
    found = list(wrong)
    names = [played.script.name for played in batch.played if not played.ended]
    return [
        fault
        for fault in faults
        if any(fnmatchcase(name, fault.script) for name in names) and not any(map(fault.covers, found))
    ]
