"""Known rows follow no schema change that this version cannot read."""

from __future__ import annotations

from typing import Any

import pytest

from raycdc.delivery.targets.commit_planner import require_readable
from raycdc.errors import ChangeRefusedError
from raycdc.model import TableId
from raycdc.sinks.api import TableCommit
from raycdc.state.manifests.manifest import Manifest, TableEpoch
from raycdc.state.opaque import EnumeratorState
from raycdc.testing.epochs import simple_schema

ORDERS = TableId("shop", "orders")


def test_a_table_of_which_only_rows_are_kept_is_named() -> None:
    part: Any = {"schema": "f", "snapshot": False, "changes": [{"type": "fold_table"}]}
    manifest = Manifest(3, 1, 0, {}, {}, EnumeratorState.from_json({}), tables={ORDERS: TableEpoch.from_json(part)})
    work = TableCommit(3, 1, ORDERS, ORDERS, simple_schema(), (), (), {})
    with pytest.raises(ChangeRefusedError, match=r"shop\.orders: .*fold_table.* is not a known schema change"):
        require_readable([work], manifest)
