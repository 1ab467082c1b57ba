"""The settings of object stores: the keys of ``[storage]``, and their conversion to the options of each library.

The same settings apply to all stores of a configuration. Each library that reads or writes a store gets its options
from here, so that all reach a bucket in the same way.

| library | function | options |
|---|---|---|
| obstore | `raycdc.storage.object_store` | keyword arguments of its stores |
| delta-rs (deltalake) | `delta_options` | ``storage_options``: object_store's configuration keys |
| pyiceberg's FileIO | `iceberg_properties` | ``s3.*``, ``adls.*``, ``gcs.*`` |

`with_tls` converts the properties of a pyiceberg catalog. An empty key is left to the library, which uses the
environment and the machine's role.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import assert_never
from urllib.parse import urlsplit

from raycdc.core.secrets import Renewed, newest
from raycdc.storage.url import ObjectLocation, StoreKind


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """The keys of ``[storage]``; `raycdc.config.sections.storage` describes each.

    Its ``repr`` shows no secrets. Picklable, for tasks and actors; a pickle contains the secrets.
    """

    endpoint: str = ""
    region: str = ""
    access_key_id: str = ""
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    profile: str = ""
    path_style: bool | None = None
    account: str = ""
    account_key: str = field(default="", repr=False)
    sas_token: str = field(default="", repr=False)
    service_account: str = ""
    anonymous: bool = False
    allow_http: bool = False

    @property
    def in_path(self) -> bool:
        """Return True if the bucket is part of a request's path instead of its host name.

        By default it is, if there is a custom endpoint.
        """
        return bool(self.endpoint) if self.path_style is None else self.path_style

    @property
    def changes(self) -> bool:
        """Return True if a key may change during the run, so that `now` reads it again."""
        keys = (self.access_key_id, self.secret_access_key, self.session_token, self.account_key, self.sas_token)
        return any(isinstance(key, Renewed) for key in keys)

    def now(self) -> StorageSettings:
        """Return the settings with the present keys. May block (`raycdc.core.secrets.ANSWER_TIMEOUT_S`)."""
        if not self.changes:
            return self
        return replace(
            self,
            access_key_id=newest(self.access_key_id),
            secret_access_key=newest(self.secret_access_key),
            session_token=newest(self.session_token),
            account_key=newest(self.account_key),
            sas_token=newest(self.sas_token),
        )


#: Empty settings: the environment and the machine's role decide.
LIKE_ANYBODY = StorageSettings()


class ProfileError(ValueError):
    """An AWS profile cannot be used; the text gives the reason and the solution."""


def with_profile(settings: StorageSettings, environment: Mapping[str, str] | None = None) -> StorageSettings:
    """Return `settings` with the keys of an AWS profile, if AWS's own tools would use one.

    AWS's tools use explicit keys first, then ``AWS_ACCESS_KEY_ID``, then the profile (``AWS_PROFILE``, or ``default``)
    of ``~/.aws``, and finally the role of the container or instance (AWS SDKs and Tools Reference, "Standardized
    credential providers"). The libraries used here read the variable and the role themselves, but no profiles. Raises
    `ProfileError`.
    """
    environment = os.environ if environment is None else environment
    if settings.access_key_id or settings.anonymous:
        return settings
    if not settings.profile and environment.get("AWS_ACCESS_KEY_ID"):
        return settings
    named = settings.profile or environment.get("AWS_PROFILE", "")
    keys = _profile(named or "default", environment)
    if keys is None:
        if named:
            raise ProfileError(f"there is no profile {named!r} in ~/.aws/credentials or ~/.aws/config")
        return settings
    if "aws_access_key_id" in keys and "aws_secret_access_key" in keys:
        return replace(
            settings,
            access_key_id=keys["aws_access_key_id"],
            secret_access_key=keys["aws_secret_access_key"],
            session_token=keys.get("aws_session_token", ""),
            region=settings.region or environment.get("AWS_REGION", "") or keys.get("region", ""),
            endpoint=settings.endpoint or environment.get("AWS_ENDPOINT_URL", "") or keys.get("endpoint_url", ""),
        )
    if named and any(key in keys for key in ("sso_session", "sso_start_url", "role_arn", "credential_process")):
        raise ProfileError(
            f"the profile {named!r} has no keys of its own; get some with: "
            f"eval $(aws configure export-credentials --profile {named} --format env)"
        )
    return replace(settings, region=settings.region or environment.get("AWS_REGION", "") or keys.get("region", ""))


def _profile(name: str, environment: Mapping[str, str]) -> dict[str, str] | None:
    """Return the settings of a profile from both files of AWS's tools; None if neither has it.

    For each key, the credentials file has priority.
    """
    home = Path(environment.get("HOME") or Path.home()) / ".aws"
    files = (
        (Path(environment.get("AWS_CONFIG_FILE") or home / "config"), name if name == "default" else f"profile {name}"),
        (Path(environment.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials"), name),
    )
    found: dict[str, str] | None = None
    for path, section in files:
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read(path, encoding="utf-8")
        except (OSError, UnicodeDecodeError, configparser.Error) as cause:
            raise ProfileError(f"{path} cannot be read: {type(cause).__name__}") from cause
        if parser.has_section(section):
            found = {**(found or {}), **dict(parser.items(section))}
    return found


_TRUE = "true"
#: The prefix of TLS properties.
_TLS = "ssl."
_Property = str | dict[str, str | dict[str, str]]


def account_of(location: ObjectLocation, settings: StorageSettings) -> str:
    """Return the Azure account of a location; empty if neither the location nor the settings name it, so that the
    environment must.
    """
    return location.account or settings.account


def delta_options(location: ObjectLocation, settings: StorageSettings) -> dict[str, str]:
    """Return the ``storage_options`` of deltalake.

    Every commit is one conditional put, which S3 supports without a lock table.
    """
    settings = _complete(location, settings)
    match location.kind:
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
                "azure_storage_account_name": account_of(location, settings),
                "azure_storage_account_key": settings.account_key,
                "azure_storage_sas_key": settings.sas_token,
                "azure_endpoint": settings.endpoint,
                "azure_skip_signature": _said(settings.anonymous),
            }
        case _:
            assert_never(location.kind)
    return _given({**options, "allow_http": _said(settings.allow_http)})


def iceberg_properties(location: ObjectLocation, settings: StorageSettings) -> dict[str, str]:
    """Return the properties of a catalog or table for pyiceberg's FileIO."""
    settings = _complete(location, settings)
    match location.kind:
        case StoreKind.S3:
            options = {
                "s3.endpoint": settings.endpoint,
                "s3.region": settings.region,
                "s3.access-key-id": settings.access_key_id,
                "s3.secret-access-key": settings.secret_access_key,
                "s3.session-token": settings.session_token,
                "s3.anonymous": _said(settings.anonymous),
                # Without this property, pyarrow puts the bucket in the path.
                "s3.force-virtual-addressing": "" if settings.in_path else _TRUE,
            }
        case StoreKind.GCS:
            options = {"gcs.service.host": settings.endpoint}
        case StoreKind.AZURE:
            server = urlsplit(settings.endpoint)
            options = {
                "adls.account-name": account_of(location, settings),
                "adls.account-key": settings.account_key,
                "adls.sas-token": settings.sas_token,
                "adls.blob-storage-authority": server.netloc,
                "adls.dfs-storage-authority": server.netloc,
                "adls.blob-storage-scheme": server.scheme,
                "adls.dfs-storage-scheme": server.scheme,
            }
        case _:
            assert_never(location.kind)
    return _given(options)


def with_tls(properties: Mapping[str, str]) -> dict[str, _Property]:
    """Return the properties of a REST catalog, with the TLS properties in nested tables (``ssl``), as pyiceberg
    expects.
    """
    given: dict[str, _Property] = {key: value for key, value in properties.items() if not key.startswith(_TLS)}
    tls = {key.removeprefix(_TLS): value for key, value in properties.items() if key.startswith(_TLS)}
    client = {key.removeprefix("client."): value for key, value in tls.items() if key.startswith("client.")}
    nested: dict[str, str | dict[str, str]] = {
        key: value for key, value in tls.items() if not key.startswith("client.")
    }
    if client:
        nested["client"] = client
    return {**given, "ssl": nested} if nested else given


def _complete(location: ObjectLocation, settings: StorageSettings) -> StorageSettings:
    settings = settings.now()
    return with_profile(settings) if location.kind is StoreKind.S3 else settings


def _said(flag: bool) -> str:
    return _TRUE if flag else ""


def _given(options: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in options.items() if value}
