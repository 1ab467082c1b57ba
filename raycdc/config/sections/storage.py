"""``[storage]``: the access to object stores, for every key that is a URL. Folders do not need it."""

from __future__ import annotations

from typing import Self

from pydantic import field_validator, model_validator

from raycdc.config.fields import FilePath, KeptText, Options, Secret, option
from raycdc.storage.settings import StorageSettings


class StorageOptions(Options):
    """The access to object stores (``s3://``, ``gs://``, ``az://``, ``abfss://``) named in other keys."""

    endpoint: str = option(
        "",
        help="Address of the server, if it is not the provider's own.",
        example="https://minio.example:9000",
    )
    region: str = option(
        "", help="S3: region of the buckets. Default: AWS_REGION, then us-east-1.", example="eu-west-1"
    )
    access_key_id: KeptText = option(
        "",
        help="S3: access key. Without one, the environment (AWS_ACCESS_KEY_ID), the profile in ~/.aws and the role "
        "of the container or instance are tried, in this order.",
        example="${env:LAKE_KEY_ID}",
    )
    secret_access_key: Secret = option(Secret(""), help="S3: secret of the access key.", example="${env:LAKE_KEY}")
    session_token: Secret = option(Secret(""), help="S3: token of a temporary access key.")
    profile: str = option("", help="S3: profile of ~/.aws whose keys are used.", example="lake")
    path_style: bool | None = option(
        None,
        help="S3: put the bucket into the path of a request, not into its host name. Default: true if an endpoint "
        "is given.",
    )
    account: str = option("", help="Azure: storage account, for az:// URLs. Default: AZURE_STORAGE_ACCOUNT_NAME.")
    account_key: Secret = option(
        Secret(""),
        help="Azure: key of the account. Without key and token, the environment (AZURE_STORAGE_ACCOUNT_KEY, "
        "AZURE_CLIENT_ID and others) and the managed identity are tried.",
        example="${env:AZURE_KEY}",
    )
    sas_token: Secret = option(Secret(""), help="Azure: shared access signature.", example="${env:AZURE_SAS}")
    service_account: FilePath = option(
        "",
        help="Google: JSON file of a service account. Default: GOOGLE_APPLICATION_CREDENTIALS, then the instance's "
        "account.",
        example="/etc/raycdc/lake.json",
    )
    anonymous: bool = option(default=False, help="Requests are not signed.")
    allow_http: bool = option(
        default=False, help="Allow an endpoint without TLS: rows and keys are then readable on the network."
    )

    @field_validator("endpoint")
    @classmethod
    def _address(cls, endpoint: str) -> str:
        if endpoint and not endpoint.startswith(("http://", "https://")):
            raise ValueError(f'must begin with https:// or http://, got "{endpoint}"')
        if "@" in endpoint or "?" in endpoint:
            raise ValueError("has a password or token in it; give credentials in keys of their own")
        return endpoint.rstrip("/")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if bool(self.access_key_id) != bool(self.secret_access_key):
            raise ValueError("give both access_key_id and secret_access_key")
        if self.session_token and not self.access_key_id:
            raise ValueError("a session_token belongs to an access_key_id")
        if self.profile and self.access_key_id:
            raise ValueError("give either a profile or an access key")
        if self.account_key and self.sas_token:
            raise ValueError("give either account_key or sas_token")
        if self.endpoint.startswith("http://") and not self.allow_http:
            raise ValueError("the endpoint is not encrypted; write https://, or allow_http = true")
        return self

    def settings(self) -> StorageSettings:
        """Return the section in the form for opening a store."""
        return StorageSettings(
            endpoint=self.endpoint,
            region=self.region,
            access_key_id=self.access_key_id,
            secret_access_key=self.secret_access_key.reveal(),
            session_token=self.session_token.reveal(),
            profile=self.profile,
            path_style=self.path_style,
            account=self.account,
            account_key=self.account_key.reveal(),
            sas_token=self.sas_token.reveal(),
            service_account=self.service_account,
            anonymous=self.anonymous,
            allow_http=self.allow_http,
        )
