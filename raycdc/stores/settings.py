"""How object stores are reached: ``[storage]`` of the configuration, and what its empty keys stand for.

One set of settings is for all stores of a configuration. Each library that reads or writes a store gets them from
`raycdc.stores.libraries`, so that a bucket is reached in the same way by all.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from raycdc.references import Renewed, newest


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """As ``[storage]`` says (`raycdc.config.storage` has the help of each key). Secrets never show in its ``repr``.

    Picklable, for tasks and actors; to be handed to nobody else.
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
        """Whether the bucket stands in the path of a request and not in its host name: mostly right for servers of
        one's own, and wrong for Amazon's.
        """
        return bool(self.endpoint) if self.path_style is None else self.path_style

    @property
    def changes(self) -> bool:
        """Whether a key is read again: see `now`."""
        keys = (self.access_key_id, self.secret_access_key, self.session_token, self.account_key, self.sas_token)
        return any(isinstance(key, Renewed) for key in keys)

    def now(self) -> StorageSettings:
        """With the keys as their references give them now. May block (`raycdc.references.ANSWER_TIMEOUT_S`)."""
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


#: Nothing said: the environment and the machine's role decide.
LIKE_ANYBODY = StorageSettings()


class ProfileError(ValueError):
    """A profile cannot be used; the text says why, and the way out."""


def with_profile(settings: StorageSettings, environment: Mapping[str, str] | None = None) -> StorageSettings:
    """`settings` with the keys of an AWS profile, where AWS's own tools would take them from one.

    They look at what is said explicitly, then at ``AWS_ACCESS_KEY_ID``, then at the profile (``AWS_PROFILE``, or
    ``default``) of ``~/.aws``, and at last ask the container or instance for its role (AWS SDKs and Tools Reference,
    "Standardized credential providers"). The libraries that we use do the second and the last by themselves; none but
    AWS's own reads profiles. Raises `ProfileError`.
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
    """What both files of AWS's tools say of a profile; of one key, the file of credentials counts."""
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
