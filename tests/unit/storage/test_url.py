"""Places by path and by URL: each form that is taken, and the way out of each that is not."""

from __future__ import annotations

import pytest

from raycdc.storage.url import (
    FolderLocation,
    ObjectLocation,
    StoreKind,
    check_local_path,
    check_location,
    is_url,
    parse_location,
)

TAKEN = {
    "/srv/lake": FolderLocation("/srv/lake"),
    "./lake": FolderLocation("./lake"),
    "lake:old": FolderLocation("lake:old"),
    "": FolderLocation(""),
    "file:///srv/lake": FolderLocation("/srv/lake"),
    "file:/srv/lake": FolderLocation("/srv/lake"),
    "file://localhost/srv/my%20lake": FolderLocation("/srv/my lake"),
    "s3://lake": ObjectLocation(StoreKind.S3, "lake"),
    "S3://lake/shop/": ObjectLocation(StoreKind.S3, "lake", "shop"),
    "s3://my.lake-1/a/b c=d": ObjectLocation(StoreKind.S3, "my.lake-1", "a/b c=d"),
    "gs://lake/shop": ObjectLocation(StoreKind.GCS, "lake", "shop"),
    "az://lake/shop": ObjectLocation(StoreKind.AZURE, "lake", "shop"),
    "abfss://lake@acc.dfs.core.windows.net/shop": ObjectLocation(StoreKind.AZURE, "lake", "shop", "acc"),
    "abfss://lake@acc.dfs.core.windows.net": ObjectLocation(StoreKind.AZURE, "lake", "", "acc"),
}

REFUSED = {
    "s3a://lake/shop": 's3a: is not supported; write "s3://lake/shop"',
    "s3a:/lake/shop": 's3a: is not supported; write "s3://lake/shop"',
    "gcs://lake/shop": 'write "gs://lake/shop"',
    "wasbs://lake@acc.blob.core.windows.net/x": "write az://CONTAINER/PREFIX",
    "abfs://lake@acc.dfs.core.windows.net/x": "write abfss://, which is encrypted",
    "abfss://lake/x": "does not name an account",
    "hdfs://nn:8020/lake": "hdfs: is not supported; write s3://BUCKET/PREFIX, gs://",
    "http://minio:9000/lake": "write s3://BUCKET/PREFIX, and the server's address into storage.endpoint",
    "C:/lake": "C: is not supported",
    "s3:/lake/shop": 'lacks a slash; write "s3://lake/shop"',
    "s3:///lake": "names no bucket",
    "s3://": "names no bucket",
    "s3://key:secret@lake/shop": "has a user or password in it",
    "s3://lake/a//b": "empty part",
    "s3://lake/../b": 'empty part, "." or ".."',
    "s3://lake/a?versionId=3": "has a '?' in it",
    "s3://lake/a%20b": "has a '%' in it",
    "s3://lake/a\nb": "control character",
    "file://nas/lake": "names the machine 'nas'",
    "file:////lake": 'write "file:///lake"',
    "~/lake": 'write "${env:HOME}/lake"',
    "~": 'write "${env:HOME}"',
    "a\0b": "NUL",
}


@pytest.mark.parametrize("text", TAKEN)
def test_a_place_is_read_and_reads_back(text: str) -> None:
    place = parse_location(text)
    assert place == TAKEN[text]
    assert parse_location(str(place)) == place
    assert check_location(text) == str(place)
    assert is_url(check_location(text)) == isinstance(place, ObjectLocation)


@pytest.mark.parametrize("text", REFUSED)
def test_another_text_is_refused_with_the_way_out(text: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse_location(text)
    assert REFUSED[text] in str(refused.value)


def test_a_key_that_is_for_files_alone_takes_no_store() -> None:
    assert check_local_path("file:///srv/lake") == "/srv/lake"
    with pytest.raises(ValueError, match="is a URL, which is not supported here; name a folder of this machine"):
        check_local_path("s3://lake/shop")


def test_what_lies_below_a_place() -> None:
    shop, lake = parse_location("s3://lake/shop"), parse_location("s3://lake")
    assert isinstance(shop, ObjectLocation)
    assert isinstance(lake, ObjectLocation)
    assert str(shop.below("epochs/1.json")) == "s3://lake/shop/epochs/1.json"
    assert str(lake.below("gen")) == "s3://lake/gen"
