"""The `raycdc.sinks.columns.ColumnAbilities` of lakes: how columns of Delta and Iceberg tables can change. Pure.

Most readers of a lake treat names that differ only in case as equal, and Delta allows no two such columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa

from raycdc.model import Column, TableId
from raycdc.model.column_names import spark_fold
from raycdc.sinks.changes import check_constant
from raycdc.sinks.columns import ColumnAbilities, TargetColumn

#: The columns of a lake are Arrow fields.
LakeAbilities = ColumnAbilities[pa.Field]
LakeColumn = TargetColumn[pa.Field]


def lake_abilities(name: str, stored: Callable[[pa.DataType], pa.DataType] = lambda arrow: arrow) -> LakeAbilities:
    """Return the abilities of the format called `name`; `stored` returns the type in which it stores an Arrow type."""
    return ColumnAbilities(
        place=f"{name} table",
        stored=lambda column: pa.field(column.name, stored(column.type.arrow())),
        widens=_widens,
        holds=lambda have, want: have == want,
        type_in_target=lambda field: str(field.type),
        type_at_source=lambda field: f"{field.type} ({field.name})",
        fold=str.lower,
        may_have_both=True,
        ordered=True,
    )


def check_adoptable(store: LakeAbilities, target: TableId, present: Iterable[pa.Field], wanted: pa.Schema) -> None:
    """Raise `SinkError` if a column of an existing table has another type than ours, or its name in another case."""
    there = {spark_fold(field.name): field for field in present}
    for want in wanted:
        have = there.get(spark_fold(want.name))
        if have is not None and (have.type != want.type or have.name != want.name):
            raise store.type_error(target, have, want)


def constant_of(target: TableId, planned: LakeColumn) -> pa.Scalar | None:
    """Return the constant default of an added column as a value of its type; None if it has no default.

    Raises `SinkError` if the default is not a value of that type.
    """
    added: Column | None = planned.added
    return None if added is None or added.default is None else check_constant(target, added)


def _widens(have: pa.DataType, new: pa.DataType) -> bool:
    """Return True if every value of type `have` is a value of type `new`."""
    if pa.types.is_decimal(have) and pa.types.is_decimal(new):
        return bool(new.scale >= have.scale and new.precision - new.scale >= have.precision - have.scale)
    same_kind = any(is_(have) and is_(new) for is_ in (pa.types.is_integer, pa.types.is_floating))
    return bool(have == new or (same_kind and have.bit_width <= new.bit_width))
