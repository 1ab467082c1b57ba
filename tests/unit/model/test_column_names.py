"""Names of columns are compared as the system compares them that has the columns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import raycdc
from raycdc.connectors.mysql.ddl.shape import same_name
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.column_names import Fold, find_name, mysql_fold, spark_fold
from raycdc.model.evolution.apply import apply
from raycdc.model.evolution.events import DropColumnEvent, RenameColumnEvent
from raycdc.model.evolution.merge import merge_schemas
from raycdc.verify.canonical import CanonicalForm, ComparedColumn

INT = LogicalType(TypeKind.INT32)
#: Files that fold texts other than names of columns: values by a collation, and what people search for.
FOLDS_OTHER_TEXTS = {
    "connectors/mysql/ddl/defaults.py",
    "observe/status/table_order.py",
    "testing/*",
    "model/rules/transform.py",
}


@pytest.mark.parametrize("fold", [mysql_fold, spark_fold])
@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("Name", "nAME", True),
        ("Größe", "GRÖSSE", False),
        ("Straße", "STRASSE", False),
        ("ÄPFEL", "äpfel", True),
        ("apfel", "äpfel", False),
        ("ﬁn", "fin", False),
        ("ﬁn", "FIN", False),
        ("ſ", "s", False),
        ("\N{KELVIN SIGN}", "k", True),
        ("ΟΔΟΣ", "οδοσ", None),
        ("ẞ", "ß", None),
        ("İd", "id", None),
    ],
)
def test_names_are_equal_letter_by_letter(fold: Fold, one: str, other: str, equal: bool | None) -> None:
    if equal is None:  # Spark and the servers differ.
        equal = (one == "ẞ") is (fold is spark_fold)
    assert (fold(one) == fold(other)) is equal


def test_an_exact_name_comes_before_one_in_another_case() -> None:
    assert find_name("name", ["NAME", "name"], mysql_fold) == "name"
    assert find_name("Name", ["NAME", "name"], mysql_fold) == "NAME"
    assert find_name("names", ["NAME", "name"], mysql_fold) is None


def test_a_dropped_column_takes_no_other_along() -> None:
    table = TableId("n", "b")
    names = ["id", "Straße", "STRASSE", "z"]
    schema = TableSchema(tuple(Column(name, INT) for name in names), ("id",))
    after = apply(schema, DropColumnEvent(table, "STRASSE"))
    assert after is not None
    assert [column.name for column in after.columns] == ["id", "Straße", "z"]
    renamed = apply(schema, RenameColumnEvent(table, "z", "strasze"))
    assert renamed is not None
    assert not same_name("Straße", "STRASSE")


def test_merged_tables_keep_both_columns() -> None:
    one = TableSchema((Column("id", INT), Column("Straße", INT)), ("id",))
    other = TableSchema((Column("ID", INT), Column("STRASSE", INT)), ("ID",))
    merged = merge_schemas(TableId("n", "all"), one, TableId("n", "b"), other)
    assert [column.name for column in merged.columns] == ["id", "Straße", "STRASSE"]


def test_verify_tells_values_of_two_columns_apart() -> None:
    salts = {ComparedColumn(name, CanonicalForm.of(INT, one_zero=False)).salt for name in ("Straße", "STRASSE")}
    assert len(salts) == 2


def test_no_module_folds_names_by_itself() -> None:
    package = Path(raycdc.__file__).parent
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(r"\.casefold\(\)|str\.casefold\b(?!`)", path.read_text())
        and not any(path.relative_to(package).match(other) for other in FOLDS_OTHER_TEXTS)
    }
    assert not found, "compare names of columns by raycdc.model.column_names"
