"""A catalog's login changes or comes to its end during a run: it is opened anew, and a refusal is waited for, unless it
is one of a table.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    ForbiddenError,
    OAuthError,
    RESTError,
    ServiceUnavailableError,
    UnauthorizedError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from sqlalchemy.exc import InterfaceError, OperationalError

from raycdc.config import Secret
from raycdc.core.secrets import Renewed
from raycdc.errors import SinkError, SinkUnavailableError, TargetModifiedError
from raycdc.model import TableId
from raycdc.sinks.iceberg import catalog as reopened
from raycdc.sinks.iceberg.catalog import HadoopCatalog, ReopenedCatalog, open_catalog
from raycdc.sinks.iceberg.location import Reach
from raycdc.sinks.iceberg.plugin import IcebergCatalogOptions
from raycdc.sinks.iceberg.snapshot_lineage import NO_EXPIRY, SnapshotLineage
from raycdc.sinks.iceberg.table import IcebergTarget, earlier
from raycdc.storage.settings import LIKE_ANYBODY, StorageSettings

ORDERS = TableId("shop", "orders")
NAME = ("shop", "orders")


def of_glue(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "as Amazon says"}}, "GetTable")


class Answering:
    """A catalog that answers so to whatever it is asked."""

    where = "rest catalog of the Iceberg sink at catalog"

    def __init__(self, answer: object) -> None:
        self._answer = answer
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def load_table(self, _: object) -> object:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@pytest.mark.parametrize(
    ("answer", "renewed", "lasting"),
    [
        (UnauthorizedError("401"), SinkUnavailableError, SinkError),
        (AuthorizationExpiredError("419"), SinkUnavailableError, SinkError),
        (OAuthError("invalid_client"), SinkUnavailableError, SinkError),
        (OperationalError("", None, Exception("password authentication failed")), SinkUnavailableError, SinkError),
        (InterfaceError("", None, Exception("(0, '')")), SinkUnavailableError, SinkError),
        (ServiceUnavailableError("503"), SinkUnavailableError, SinkUnavailableError),
        (RESTError("422"), SinkError, SinkError),
        (ForbiddenError("403: shop.orders"), TargetModifiedError, TargetModifiedError),
        (of_glue("UnrecognizedClientException"), SinkUnavailableError, SinkError),
        (of_glue("InvalidSignatureException"), SinkUnavailableError, SinkError),
        (of_glue("ExpiredTokenException"), SinkUnavailableError, SinkError),
        (of_glue("AccessDeniedException"), TargetModifiedError, TargetModifiedError),
        (of_glue("InvalidInputException"), TargetModifiedError, TargetModifiedError),
        (of_glue("ThrottlingException"), SinkUnavailableError, SinkUnavailableError),
        (EndpointConnectionError(endpoint_url="https://glue"), SinkUnavailableError, SinkUnavailableError),
    ],
    ids=repr,
)
def test_a_login_that_is_read_again_may_be_right_soon(
    answer: Exception, renewed: type[SinkError], lasting: type[SinkError]
) -> None:
    catalog = cast("Any", Answering(answer))
    for changes, said in ((True, renewed), (False, lasting)):
        reach = Reach(LIKE_ANYBODY, login_changes=changes)
        target = IcebergTarget(catalog, ORDERS, "", seen=SnapshotLineage(), reach=reach, expiry=NO_EXPIRY)
        with pytest.raises(SinkError, match=r"shop\.orders cannot be read") as caught:
            target.refresh()
        assert type(caught.value) is said
        assert ("let our account read and change it there" in str(caught.value)) is (
            "403" in str(answer) or "AccessDenied" in str(answer)
        )


def test_a_catalogs_options_say_whether_they_are_read_again() -> None:
    token = Renewed("t", "${file:token}")
    assert IcebergCatalogOptions(type="rest", uri=Secret("https://catalog"), properties={"token": token}).changes
    assert IcebergCatalogOptions(
        type="sql", uri=Secret(Renewed("sqlite://", "${file:uri}")), warehouse="./lake"
    ).changes
    assert not IcebergCatalogOptions(type="rest", uri=Secret("https://catalog"), properties={"token": "t"}).changes


class Opening:
    """Opens one of the `catalogs` after the other, and keeps the tokens with which it was asked to."""

    def __init__(self, *catalogs: Answering | SinkError) -> None:
        self._catalogs = list(catalogs)
        self.tokens: list[str] = []

    def __call__(self, options: IcebergCatalogOptions, _: StorageSettings) -> Answering:
        self.tokens.append(options.properties["token"])
        catalog = self._catalogs.pop(0)
        if isinstance(catalog, SinkError):
            raise catalog
        return catalog


def reopening(monkeypatch: pytest.MonkeyPatch, token: str, *catalogs: Answering | SinkError) -> tuple[Any, Opening]:
    opening = Opening(*catalogs)
    monkeypatch.setattr(reopened, "open_catalog", opening)
    options = IcebergCatalogOptions(type="rest", uri=Secret("https://catalog"), properties={"token": token})
    return ReopenedCatalog(options, LIKE_ANYBODY), opening


def renewed(folder: Path, text: str) -> Renewed:
    (folder / "token").write_text(text)
    return Renewed(text, f"${{file:{folder}/token}}")


def test_a_catalog_is_opened_anew_with_keys_that_are_others_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = renewed(tmp_path, "first")
    one, two = Answering("one"), Answering("two")
    catalog, opening = reopening(monkeypatch, token, one, SinkError("not yet"), two)
    assert [catalog.load_table(NAME), catalog.load_table(NAME)] == ["one", "one"]
    renewed(tmp_path, "second")
    with pytest.raises(SinkUnavailableError, match="not yet"):
        catalog.load_table(NAME)
    assert not one.closed
    assert catalog.load_table(NAME) == "two"
    assert (one.closed, two.closed) == (True, False)
    assert opening.tokens == ["first", "second", "second"]


@pytest.mark.parametrize("forbidden", [ForbiddenError("403"), of_glue("AccessDeniedException")], ids=repr)
def test_a_catalog_that_forbids_a_table_is_asked_once_more_by_a_new_login(
    forbidden: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a token that came to its end is noticed, whatever the server calls that."""
    refusing = Answering(forbidden)
    catalog, opening = reopening(monkeypatch, "lasting", refusing, Answering("table"))
    assert catalog.load_table(NAME) == "table"
    catalog, opening = reopening(monkeypatch, "lasting", refusing, refusing)
    with pytest.raises(type(forbidden)):
        catalog.load_table(NAME)
    assert opening.tokens == ["lasting", "lasting"]
    # As a whole it refuses us: no table is concerned, and only a login that may change is waited for.
    for token, said in ((renewed(tmp_path, "t"), SinkUnavailableError), ("lasting", SinkError)):
        catalog, opening = reopening(monkeypatch, token, refusing, SinkError("cannot be opened"))
        with pytest.raises(SinkError, match="cannot be opened") as caught:
            catalog.load_table(NAME)
        assert type(caught.value) is said


@pytest.mark.parametrize(
    ("answer", "is_an_end"),
    [
        (FileNotFoundError("metadata/1.json"), True),
        (OSError("When reading: AWS Error ACCESS_DENIED during GetObject operation"), False),
        (OSError("When reading: AWS Error NETWORK_CONNECTION during GetObject operation"), False),
    ],
    ids=repr,
)
def test_a_store_that_lets_us_not_see_earlier_metadata_is_not_the_end_of_a_tables_history(
    answer: OSError, is_an_end: bool
) -> None:
    """Else the table would be taken for one that was rolled back, while keys are changed."""

    def refuse(_: str) -> None:
        raise answer

    entry = SimpleNamespace(metadata_file="metadata/1.json")
    table = SimpleNamespace(metadata=SimpleNamespace(metadata_log=[entry]), io=SimpleNamespace(new_input=refuse))
    if is_an_end:
        assert list(earlier(cast("Any", table))) == []
    else:
        with pytest.raises(OSError, match="AWS Error"):
            list(earlier(cast("Any", table)))


@pytest.mark.parametrize("kind", ["sql", "hadoop"])
@pytest.mark.parametrize("there", [True, False])
def test_a_namespace_is_asked_for_only_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Literal["sql", "hadoop"], *, there: bool
) -> None:
    """Who may make tables in it may often make none: Glue without CreateDatabase, a REST catalog's 403."""
    uri = f"sqlite:///{tmp_path}/catalog.db" if kind == "sql" else ""
    options = IcebergCatalogOptions(type=kind, uri=Secret(uri), warehouse=str(tmp_path / "lake"))
    catalog = ReopenedCatalog(options, LIKE_ANYBODY)
    if there:
        open_catalog(options, LIKE_ANYBODY).create_namespace(NAME[:1])

        def forbidden(*_: object, **__: object) -> None:
            raise ForbiddenError("403: not allowed to CREATE_NAMESPACE")

        for each in (SqlCatalog, HadoopCatalog):
            monkeypatch.setattr(each, "create_namespace", forbidden)
    schema = Schema(NestedField(1, "id", LongType(), required=False))
    catalog.create_table(NAME, schema, partition_spec=UNPARTITIONED_PARTITION_SPEC, properties={})
    assert catalog.load_table(NAME).schema().column_names == ["id"]
    catalog.close()
