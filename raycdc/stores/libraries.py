"""`StorageSettings` in the words of each library that reads or writes an object store, one function for each.

| for | function | words |
|---|---|---|
| obstore | `raycdc.stores.object_store` | keyword arguments of its stores |
| delta-rs (deltalake) | `delta_options` | ``storage_options``: object_store's configuration keys |
| pyiceberg's FileIO | `iceberg_properties` | ``s3.*``, ``adls.*``, ``gcs.*`` |

`with_tls` does the same for the properties of a catalog of pyiceberg's.

An empty key is left to the library, which asks the environment and the machine's role.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never
from urllib.parse import urlsplit

from raycdc.stores.settings import StorageSettings, with_profile
from raycdc.stores.url import ObjectPlace, StoreKind

_TRUE = "true"
#: Properties of TLS begin so.
_TLS = "ssl."
_Property = str | dict[str, str | dict[str, str]]


def account_of(place: ObjectPlace, settings: StorageSettings) -> str:
    """The account of a place at Azure; empty where only the environment may name it."""
    return place.account or settings.account


def delta_options(place: ObjectPlace, settings: StorageSettings) -> dict[str, str]:
    """``storage_options`` of deltalake. Every commit is one conditional put, which S3 has without a lock table."""
    settings = _complete(place, settings)
    match place.kind:
        case StoreKind.S3:
            options = {
                "aws_endpoint": settings.endpoint,
                "aws_region": settings.region,
                "aws_access_key_id": settings.access_key_id,
                "aws_secret_access_key": settings.secret_access_key,
                "aws_session_token": settings.session_token,
                "aws_virtual_hosted_style_request": "" if settings.in_path else _TRUE,
                "aws_skip_signature": _said(settings.anonymous),
                "aws_conditional_put": "etag",
            }
        case StoreKind.GCS:
            options = {
                "google_service_account": settings.service_account,
                "google_base_url": settings.endpoint,
                "google_skip_signature": _said(settings.anonymous),
            }
        case StoreKind.AZURE:
            options = {
                "azure_storage_account_name": account_of(place, settings),
                "azure_storage_account_key": settings.account_key,
                "azure_storage_sas_key": settings.sas_token,
                "azure_endpoint": settings.endpoint,
                "azure_skip_signature": _said(settings.anonymous),
            }
        case _:
            assert_never(place.kind)
    return _given({**options, "allow_http": _said(settings.allow_http)})


def iceberg_properties(place: ObjectPlace, settings: StorageSettings) -> dict[str, str]:
    """Properties of a catalog or table for pyiceberg's FileIO."""
    settings = _complete(place, settings)
    match place.kind:
        case StoreKind.S3:
            options = {
                "s3.endpoint": settings.endpoint,
                "s3.region": settings.region,
                "s3.access-key-id": settings.access_key_id,
                "s3.secret-access-key": settings.secret_access_key,
                "s3.session-token": settings.session_token,
                "s3.anonymous": _said(settings.anonymous),
                # pyiceberg hands its text to pyarrow, whose default is the path.
                "s3.force-virtual-addressing": "" if settings.in_path else _TRUE,
            }
        case StoreKind.GCS:
            options = {"gcs.service.host": settings.endpoint}
        case StoreKind.AZURE:
            server = urlsplit(settings.endpoint)
            options = {
                "adls.account-name": account_of(place, settings),
                "adls.account-key": settings.account_key,
                "adls.sas-token": settings.sas_token,
                "adls.blob-storage-authority": server.netloc,
                "adls.dfs-storage-authority": server.netloc,
                "adls.blob-storage-scheme": server.scheme,
                "adls.dfs-storage-scheme": server.scheme,
            }
        case _:
            assert_never(place.kind)
    return _given(options)


def with_tls(properties: Mapping[str, str]) -> dict[str, _Property]:
    """The properties of a REST catalog with those of TLS as pyiceberg wants them: ``ssl`` as nested tables."""
    given: dict[str, _Property] = {key: value for key, value in properties.items() if not key.startswith(_TLS)}
    tls = {key.removeprefix(_TLS): value for key, value in properties.items() if key.startswith(_TLS)}
    client = {key.removeprefix("client."): value for key, value in tls.items() if key.startswith("client.")}
    nested: dict[str, str | dict[str, str]] = {
        key: value for key, value in tls.items() if not key.startswith("client.")
    }
    if client:
        nested["client"] = client
    return {**given, "ssl": nested} if nested else given


def _complete(place: ObjectPlace, settings: StorageSettings) -> StorageSettings:
    settings = settings.now()
    return with_profile(settings) if place.kind is StoreKind.S3 else settings


def _said(flag: bool) -> str:
    return _TRUE if flag else ""


def _given(options: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in options.items() if value}
