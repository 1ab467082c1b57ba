"""A URL where a folder is meant: refused wherever a path is taken, by every key there is."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from raycdc.config import PipelineConfig, config_from_dict, option
from raycdc.config.changes import declared_models, is_location, keys_of, leaf_types
from raycdc.errors import ConfigError, StateError
from raycdc.state.store import CheckpointStore
from raycdc.storage.url import check_local_path

URLS = ("s3a://lake/shop", "s3a:/lake/shop", "file://nas/lake", "hdfs://nn:8020/lake", "C:/lake", "~/lake", "~")

#: Keys that sound like one and are none, and why.
NO_PATHS = {
    "sink:iceberg catalog.warehouse": "a REST server's own name; of the other catalogs a validator checks it",
    "source:mysql startup.file": "a binlog file as the server calls it",
}
_SOUNDS = re.compile(r"\b(folders?|director(y|ies)|files? with|path|warehouse)\b", re.IGNORECASE)
_NAMED = re.compile(r"(^|[._])(path|dir|folder|file|ca|cert|key_file|state|spool|warehouse)$")


def sounds_like_a_path(section: str, key: str, field: FieldInfo) -> bool:
    texts = str in leaf_types(field.annotation)
    said = _SOUNDS.search((field.description or "").partition(".")[0]) is not None
    return texts and (said or _NAMED.search(key) is not None) and f"{section} {key}" not in NO_PATHS


def missing(section: str, model: type[BaseModel]) -> list[str]:
    return [
        f"{section} {key}"
        for key, field in keys_of(model)
        if sounds_like_a_path(section, key, field) and not is_location(field)
    ]


def test_every_key_that_is_a_path_refuses_urls() -> None:
    found = {name for section, model in declared_models() for name in missing(section, model)}
    assert not found
    marked = {f"{s} {key}" for s, model in declared_models() for key, field in keys_of(model) if is_location(field)}
    assert marked >= {"pipeline state", "ray spool", "sink:delta path", "sink:iceberg path", "source:mysql tls.ca"}


def test_the_next_key_is_found() -> None:
    class Planted(BaseModel):
        letters: str = option("", help="Folder of what was left out.")
        journal_path: str | None = option(None, help="Where it is.")

    assert missing("sink:planted", Planted) == ["sink:planted letters", "sink:planted journal_path"]


@pytest.mark.parametrize("url", URLS)
def test_a_url_is_refused_with_the_way_out(url: str, tmp_path: Path) -> None:
    data: dict[str, Any] = {
        "pipeline": {"name": "shop", "state": url},
        "source": {"type": "mysql", "user": "cdc", "tables": ["shop.t"], "tls": {"ca": url}},
        "ray": {"spool": url},
        "sink": {"type": "delta", "path": url},
    }
    with pytest.raises(ConfigError) as refused:
        config_from_dict(data)
    places = {text.partition(": ")[0] for text in refused.value.problems}
    assert places == {"pipeline.state", "source.tls.ca", "ray.spool", "sink.path"}
    assert all(url in text for text in refused.value.problems)
    with pytest.raises(StateError, match="The state cannot be there"):
        CheckpointStore(url, create=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_files_take_the_urls_of_stores_and_no_others(kind: str) -> None:
    sink = configured({"type": kind, "path": "s3://lake/l"}).sink
    assert (sink.store, sink.folder) == ("s3://lake/l", "")
    with pytest.raises(ConfigError, match='write "s3://lake/l"'):
        configured({"type": kind, "path": "s3a://lake/l"})


ICEBERG_PLACES: tuple[Callable[[str], dict[str, Any]], ...] = (
    lambda url: {"path": url},
    lambda url: {"catalog": {"type": "sql", "uri": "sqlite:///c.db", "warehouse": url}},
    lambda url: {"catalog": {"type": "glue", "warehouse": url}},
)


@pytest.mark.parametrize("place", ICEBERG_PLACES)
def test_iceberg_takes_the_urls_of_stores_and_no_others(place: Callable[[str], dict[str, Any]]) -> None:
    for url in ("s3://lake/l", "gs://lake/l", "abfss://lake@account.dfs.core.windows.net/l"):
        sink = configured({"type": "iceberg", **place(url)}).sink
        assert (sink.store, sink.folder) == (url, "")
    with pytest.raises(ConfigError, match='write "s3://lake/l"'):
        configured({"type": "iceberg", **place("s3a://lake/l")})


def configured(sink: dict[str, Any]) -> PipelineConfig:
    source = {"type": "mysql", "user": "cdc", "tables": ["shop.t"]}
    return config_from_dict({"pipeline": {"name": "p"}, "source": source, "sink": {"write": "changelog", **sink}})


def test_what_a_refusal_advises_is_taken() -> None:
    assert check_local_path("file:///srv/lake") == "/srv/lake"
    for text in ("/srv/lake", "./lake", "lake:old", "a/b:c", "", "lake~", "s3a"):
        assert check_local_path(text) == text
    with pytest.raises(ValueError, match="NUL"):
        check_local_path("a\0b")
