"""A catalog's login changes during a run: handles of tables go on with the new one, and a refusal is waited for."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from pyiceberg.exceptions import ForbiddenError, ServiceUnavailableError, UnauthorizedError
from sqlalchemy.exc import OperationalError

from raycdc.bridge import run_in_process
from raycdc.config import Secret
from raycdc.errors import SinkError, SinkUnavailableError, TargetTouchedError
from raycdc.model import TableId
from raycdc.plugins import PluginGroup, load_plugin
from raycdc.references import Renewed
from raycdc.sinks.api import SinkContext
from raycdc.sinks.iceberg.descent import Seen
from raycdc.sinks.iceberg.expiry import NO_EXPIRY
from raycdc.sinks.iceberg.places import Reach
from raycdc.sinks.iceberg.plugin import IcebergCatalogOptions
from raycdc.sinks.iceberg.sink import IcebergSink
from raycdc.sinks.iceberg.table import IcebergTarget
from raycdc.stores.settings import LIKE_ANYBODY

ORDERS = TableId("shop", "orders")


def test_a_handle_that_was_made_while_the_catalog_was_opened_anew_goes_on_with_the_new_one(tmp_path: Path) -> None:
    plugin = load_plugin(PluginGroup.SINKS, "iceberg")
    sink: IcebergSink = plugin.create(plugin.config(type="iceberg", path=str(tmp_path)))
    sink.open(SinkContext("raycdc:shop:1", "upsert", run_in_process))
    with sink.opened(ORDERS, writes=True):
        handle = sink._targets[ORDERS]
    now, handle.catalog = handle.catalog, cast("Any", "the one before")
    with sink.opened(ORDERS, writes=True):
        assert handle.catalog is now
    sink.close()


class Refusing:
    """A catalog that answers so."""

    def __init__(self, answer: Exception) -> None:
        self._answer = answer

    def load_table(self, _: object) -> None:
        raise self._answer


@pytest.mark.parametrize(
    ("answer", "renewed", "lasting"),
    [
        (UnauthorizedError("401"), SinkUnavailableError, SinkError),
        (OperationalError("", None, Exception("password authentication failed")), SinkUnavailableError, SinkError),
        (ServiceUnavailableError("503"), SinkError, SinkError),
        (ForbiddenError("403: shop.orders"), TargetTouchedError, TargetTouchedError),
    ],
    ids=repr,
)
def test_a_login_that_is_read_again_may_be_right_soon(
    answer: Exception, renewed: type[SinkError], lasting: type[SinkError]
) -> None:
    catalog = cast("Any", Refusing(answer))
    for changes, said in ((True, renewed), (False, lasting)):
        reach = Reach(LIKE_ANYBODY, login_changes=changes)
        target = IcebergTarget(catalog, ORDERS, "", seen=Seen(), reach=reach, expiry=NO_EXPIRY)
        with pytest.raises(SinkError, match=r"shop\.orders cannot be read") as caught:
            target.refresh()
        assert type(caught.value) is said


def test_a_catalogs_options_say_whether_they_are_read_again() -> None:
    token = Renewed("t", "${file:token}")
    assert IcebergCatalogOptions(type="rest", uri=Secret("https://catalog"), properties={"token": token}).changes
    assert IcebergCatalogOptions(
        type="sql", uri=Secret(Renewed("sqlite://", "${file:uri}")), warehouse="./lake"
    ).changes
    assert not IcebergCatalogOptions(type="rest", uri=Secret("https://catalog"), properties={"token": "t"}).changes
