"""The constraints of a Delta table: CHECK constraints, invariants, NOT NULL, and generated columns.

Tables that this pipeline creates have no constraints, but other writers may add some. If delta-rs writes rows itself
(in merges and in appends of rows), it checks constraints; in appends it also computes generated columns. A commit that
only names files bypasses all constraints, so it is not used for a table with constraints. delta-rs cannot number the
rows of identity columns or compute generated columns in updates, so tables that need this are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from deltalake import DeltaTable

_CONSTRAINT = "delta.constraints."
_INVARIANT = "delta.invariants"
_GENERATED = "delta.generationExpression"
_IDENTITY = "delta.identity."

#: The place in an error from which on it quotes rows or values that the table does not accept.
_VALUES = re.compile(r"Preview of invalid data:|(?<=violated by row) with values:", re.IGNORECASE)
#: Patterns of the values that error messages quote: errors about Spark's conversions, lengths of texts, and casts of
#: Arrow and DataFusion.
_VALUE = re.compile(
    r"""(?<=\b[Vv]alue )(?:'.*?'|".*?"|[-+\d][^\s]*)(?= (?:of|exceeds|to|is|not)\b)"""
    r"""|(?<=string )'.*?'(?= to value of)|(?<=[Tt]ext )'.*?'(?= could)|(?<=parse )'.*?'(?= )|(?<=in row: )\[.*?\]""",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class TableConstraints:
    """The constraints of a table: descriptions of CHECK constraints and invariants, and the names of columns of each
    kind.
    """

    constraints: tuple[str, ...] = ()
    not_null: tuple[str, ...] = ()
    generated: tuple[str, ...] = ()
    identity: tuple[str, ...] = ()

    @classmethod
    def of(cls, table: DeltaTable) -> TableConstraints:
        """Return the constraints of the table's snapshot."""
        configuration, fields = table.metadata().configuration, table.schema().fields
        constraints = [
            f"{name.removeprefix(_CONSTRAINT)} ({configuration[name]})"
            for name in sorted(configuration)
            if name.startswith(_CONSTRAINT)
        ]
        invariants = [f"an invariant of column {field.name}" for field in fields if _INVARIANT in field.metadata]
        return cls(
            constraints=(*constraints, *invariants),
            not_null=tuple(field.name for field in fields if not field.nullable),
            generated=tuple(field.name for field in fields if _GENERATED in field.metadata),
            identity=tuple(field.name for field in fields if any(n.startswith(_IDENTITY) for n in field.metadata)),
        )

    def __bool__(self) -> bool:
        return bool(self.constraints or self.not_null or self.generated or self.identity)

    def __str__(self) -> str:
        """Return the constraints as a text for people."""
        each = [
            *self.constraints,
            *(f"{name} NOT NULL" for name in self.not_null),
            *(f"{name} generated" for name in self.generated),
        ]
        return ", ".join(each)


def without_values(text: str) -> str:
    """Return an error's text of delta-rs or Spark without values, cut off before the rows that it quotes."""
    found = _VALUES.search(text)
    return _VALUE.sub("…", text if found is None else text[: found.start()].rstrip(" :"))
