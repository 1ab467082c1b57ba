"""``[storage]`` and its words for each library; keys of AWS profiles; secrets that never show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raycdc.config import config_from_dict
from raycdc.errors import ConfigError
from raycdc.storage.settings import ProfileError, StorageSettings, delta_options, iceberg_properties, with_profile
from raycdc.storage.url import ObjectLocation, StoreKind

S3 = ObjectLocation(StoreKind.S3, "lake", "shop")
MINIO = StorageSettings(
    endpoint="http://minio:9000",
    region="eu-west-1",
    access_key_id="AK",
    secret_access_key="s3cr3t",
    allow_http=True,
)


def loaded(**storage: Any) -> StorageSettings:
    source = {"type": "mysql", "user": "cdc", "tables": ["shop.t"]}
    sink = {"type": "jsonl", "path": "./lake", "write": "changelog"}
    data = {"pipeline": {"name": "shop"}, "source": source, "sink": sink, "storage": storage}
    config = config_from_dict(data, environment={"KEY": "s3cr3t"})
    assert "s3cr3t" not in repr(config)
    return config.storage.settings()


def test_the_section_gives_the_settings_with_secrets_by_reference() -> None:
    settings = loaded(
        endpoint="http://minio:9000/",
        region="eu-west-1",
        access_key_id="AK",
        secret_access_key="${env:KEY}",
        allow_http=True,
    )
    assert settings == MINIO
    assert "s3cr3t" not in repr(settings)


@pytest.mark.parametrize(
    ("storage", "text"),
    [
        ({"endpoint": "minio:9000"}, "must begin with https:// or http://"),
        ({"endpoint": "https://u:p@minio"}, "has a password or token in it"),
        ({"endpoint": "http://minio:9000"}, "is not encrypted; write https://, or allow_http = true"),
        ({"access_key_id": "AK"}, "give both access_key_id and secret_access_key"),
        ({"session_token": "t"}, "a session_token belongs to an access_key_id"),
        ({"profile": "p", "access_key_id": "AK", "secret_access_key": "k"}, "give either a profile or an access key"),
        ({"account_key": "k", "sas_token": "t"}, "give either account_key or sas_token"),
        ({"bucket": "b"}, "unknown"),
    ],
)
def test_a_section_that_cannot_be_meant_is_refused(storage: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        loaded(**storage)


def test_each_library_gets_the_same_in_its_own_words() -> None:
    assert delta_options(S3, MINIO) == {
        "aws_endpoint": "http://minio:9000",
        "aws_region": "eu-west-1",
        "aws_access_key_id": "AK",
        "aws_secret_access_key": "s3cr3t",
        "aws_conditional_put": "etag",
        "allow_http": "true",
    }
    assert iceberg_properties(S3, MINIO) == {
        "s3.endpoint": "http://minio:9000",
        "s3.region": "eu-west-1",
        "s3.access-key-id": "AK",
        "s3.secret-access-key": "s3cr3t",
    }


def test_azure_takes_the_account_of_the_url_before_that_of_the_section() -> None:
    settings = StorageSettings(account="other", account_key="a2V5")
    place = ObjectLocation(StoreKind.AZURE, "lake", "shop", "acc")
    assert delta_options(place, settings) == {
        "azure_storage_account_name": "acc",
        "azure_storage_account_key": "a2V5",
    }
    assert iceberg_properties(ObjectLocation(StoreKind.AZURE, "lake"), settings)["adls.account-name"] == "other"


def profiles(home: Path) -> dict[str, str]:
    aws = home / ".aws"
    aws.mkdir()
    (aws / "credentials").write_text("[lake]\naws_access_key_id = PK\naws_secret_access_key = pk\n")
    (aws / "config").write_text(
        "[profile lake]\nregion = eu-north-1\n[profile people]\nsso_session = x\n[default]\nregion = eu-south-1\n"
    )
    return {"HOME": str(home)}


def test_keys_of_a_profile_are_taken_where_aws_tools_would(tmp_path: Path) -> None:
    environment = profiles(tmp_path)
    found = StorageSettings(access_key_id="PK", secret_access_key="pk", region="eu-north-1")
    assert with_profile(StorageSettings(), {**environment, "AWS_PROFILE": "lake"}) == found
    assert with_profile(StorageSettings(profile="lake"), environment) == StorageSettings(
        access_key_id="PK", secret_access_key="pk", region="eu-north-1", profile="lake"
    )
    # What is said explicitly, or by the environment, comes first.
    assert with_profile(MINIO, {**environment, "AWS_PROFILE": "lake"}) == MINIO
    assert with_profile(StorageSettings(), {**environment, "AWS_ACCESS_KEY_ID": "E"}) == StorageSettings()
    # A default profile without keys gives its region, and leaves the keys to the machine's role.
    assert with_profile(StorageSettings(), environment) == StorageSettings(region="eu-south-1")


def test_a_profile_without_keys_is_refused_with_the_way_out(tmp_path: Path) -> None:
    environment = profiles(tmp_path)
    with pytest.raises(ProfileError, match=r"no profile 'nobody' in ~/\.aws"):
        with_profile(StorageSettings(profile="nobody"), environment)
    with pytest.raises(ProfileError, match="aws configure export-credentials --profile people --format env"):
        with_profile(StorageSettings(profile="people"), environment)
