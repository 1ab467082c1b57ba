"""The section ``[[route]]``: where tables go."""

from __future__ import annotations

from pydantic import ValidationInfo, field_validator

from raycdc.config.fields import Options, TablePattern, option
from raycdc.model.routes import Route, check_target


class RouteOptions(Options):
    """The targets of tables. A table without a route keeps its name; several routes to one target merge tables."""

    table: TablePattern = option(
        help="Source tables: a name (odd parts between backquotes), or a regular expression in full.",
        example=r"shop\.item_(\d+)",
    )
    replace_symbol: str = option("", help="A text in `to` that stands for the source table's name.", example="<>")
    to: str = option(
        help="The target. `$1` and `$<name>` stand for groups of `table`, `$$` for a dollar sign.", example="lake.item"
    )

    @field_validator("to")
    @classmethod
    def _check_to(cls, to: str, info: ValidationInfo) -> str:
        if "table" in info.data:
            check_target(info.data["table"], to, info.data.get("replace_symbol", ""))
        return to

    def route(self) -> Route:
        """The route as `raycdc.model.routes` has it."""
        return Route(self.table, self.to, self.replace_symbol)
