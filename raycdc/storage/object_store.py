"""`ObjectStore`, a `raycdc.storage.api.Store` that uses obstore, whose client (object_store) delta-rs uses, too.

The library repeats requests that a server did not answer, or answered with a server error, at growing intervals.

`probe` tests that a store can be reached and written to, and that it honours ``If-None-Match``. A server that ignores
this condition (S3 did before 2024, and some compatible servers still do) would let two writers silently overwrite each
other's commits. The test therefore writes one object twice; the store must refuse the second write.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from raycdc.core.certificate_faults import CA_VARIABLE, TlsServer, endpoint, first_fault
from raycdc.core.retry import Backoff, RetryPolicy
from raycdc.storage.api import (
    ConfirmedWrite,
    ObjectWritten,
    PreconditionFailed,
    Store,
    Stored,
    StoreError,
    UnconfirmedWrite,
    Version,
    resolve_write,
)
from raycdc.storage.settings import ProfileError, StorageSettings, account_of, with_profile
from raycdc.storage.silence import SILENCES
from raycdc.storage.url import ObjectLocation, StoreKind

if TYPE_CHECKING:
    from obstore import PutMode, UpdateVersion
    from obstore.store import (
        AzureAccessKey,
        AzureSASToken,
        AzureStore,
        ClientConfig,
        GCSStore,
        MemoryStore,
        RetryConfig,
        S3Credential,
        S3Store,
    )

    AnyClient = S3Store | GCSStore | AzureStore | MemoryStore

#: A request without an answer is cancelled after this time, and repeated.
REQUEST_TIMEOUT_S = 30
CONNECT_TIMEOUT_S = 5
#: Pauses between tries grow from the first to the longest, so a server gets at most two tries per second. The tries end
#: after two minutes.
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 15
TRIES_FOR_S = 120
#: obstore requests new keys when the old ones are about to expire. With this short lifetime, it does so before each
#: request.
_KEYS_GOOD_FOR = timedelta(seconds=30)

_Client = TypeVar("_Client")
_Answer = TypeVar("_Answer")

#: The query of a request's URL. Errors quote it, and with an Azure token it contains the signature.
_QUERY = re.compile(r"\?[^\s<>\"']*")


class ObjectStore:
    """A `Store` on an object store; see the module's docstring. Opening it sends no request."""

    def __init__(
        self,
        location: ObjectLocation,
        settings: StorageSettings | None = None,
        *,
        client: AnyClient | None = None,
        tries_for_s: float = TRIES_FOR_S,
    ) -> None:
        """Access the objects below `location`. Raises `StoreError` if the settings are unusable.

        `client` is for tests: an existing client of obstore.
        """
        self._location = location
        self._tries_for_s = tries_for_s
        #: The number of requests by operation, for tests. A request that the library repeats counts once.
        self.requests: Counter[str] = Counter()
        self._endpoint = settings.endpoint if settings else ""
        #: A refused request is repeated if the keys may change and an earlier request was accepted.
        self._keys_change = settings is not None and settings.changes
        self._was_authorized = False
        self._client = client or client_of(location, settings or StorageSettings(), tries_for_s=tries_for_s)

    def __repr__(self) -> str:
        return f"ObjectStore({str(self._location)!r})"

    @property
    def location(self) -> ObjectLocation:
        return self._location

    def read(self, name: str) -> Stored | None:
        import obstore

        self.requests["get"] += 1
        with self._named(name, "read"):
            try:
                result = self._asked(partial(obstore.get, self._client, name))
                return Stored(result.bytes().to_bytes(), _version(result.meta["e_tag"], result.meta["version"]))
            except FileNotFoundError as cause:
                if "NoSuchBucket" in str(cause) or "ContainerNotFound" in str(cause):
                    raise StoreError(
                        f"{self._location} cannot be read: there is no such bucket.", lasting=True
                    ) from cause
                return None

    def put(self, name: str, data: bytes) -> ObjectWritten:
        with self._named(name, "written"):
            return ObjectWritten(self._put(name, data, "overwrite"))

    def put_if_absent(self, name: str, data: bytes) -> ObjectWritten | PreconditionFailed:
        return self._conditional(name, data, "create", None)

    def replace_if_match(self, name: str, data: bytes, version: Version) -> ObjectWritten | PreconditionFailed:
        expected: UpdateVersion = {}
        if version.e_tag:
            expected["e_tag"] = version.e_tag
        if version.number:
            expected["version"] = version.number
        return self._conditional(name, data, expected, version)

    def list(self, folder: str) -> list[str]:
        import obstore

        self.requests["list"] += 1
        with self._named(folder, "listed"):
            prefix = f"{folder}/" if folder else ""
            found = self._asked(
                lambda: [meta["path"] for chunk in obstore.list(self._client, prefix or None) for meta in chunk]
            )
            return sorted(name.removeprefix(prefix) for name in found)

    def delete(self, name: str) -> None:
        import obstore

        self.requests["delete"] += 1
        with self._named(name, "deleted"):
            try:
                self._asked(partial(obstore.delete, self._client, name))
            except FileNotFoundError:
                return  # S3 does not report a missing object, other stores do.

    def put_file(self, name: str, path: Path) -> None:
        """Upload a file of this machine as the object `name`, in parts if it is large.

        The object appears when all parts are sent.
        """
        import obstore

        self.requests["put"] += 1
        with self._named(name, "written", small=False):
            self._asked(partial(obstore.put, self._client, name, path))

    def delete_all(self, names: Sequence[str]) -> None:
        """Delete objects, as many in a request as the server takes."""
        import obstore

        self.requests["delete"] += 1
        if names:
            with self._named("", "deleted from"), suppress(FileNotFoundError):
                self._asked(partial(obstore.delete, self._client, list(names)))

    def _conditional(
        self, name: str, data: bytes, mode: PutMode, before: Version | None
    ) -> ObjectWritten | PreconditionFailed:
        def attempt() -> ConfirmedWrite | UnconfirmedWrite:
            try:
                return ConfirmedWrite(self._put(name, data, mode))
            except FileNotFoundError as cause:
                # S3 answers 404 to If-Match on a missing object.
                return self._unsure(name, cause)
            except _doubtful() as cause:
                return self._unsure(name, cause)

        with self._named(name, "written"):
            return resolve_write(attempt, lambda: self.read(name), data, before=before)

    def _reporting(self) -> AbstractContextManager[None]:
        return SILENCES.asking(str(self._location), tries_for_s=self._tries_for_s, is_answer=_is_answer)

    def _unsure(self, name: str, cause: Exception) -> UnconfirmedWrite:
        text = f"{self._location.below(name)} cannot be written: {shown(cause)}."
        return UnconfirmedWrite(StoreError(text, lasting=False))

    def _put(self, name: str, data: bytes, mode: PutMode) -> Version:
        import obstore

        self.requests["put"] += 1
        # A multipart upload takes no condition, and every document fits in one request.
        result = self._asked(partial(obstore.put, self._client, name, data, mode=mode, use_multipart=False))
        return _version(result["e_tag"], result["version"])

    def _asked(self, request: Callable[[], _Answer]) -> _Answer:
        """Send a request and return its answer. If keys may change, repeat a request that is refused.

        The two keys of a pair do not change at the same moment, neither here nor at the server, and a request between
        the two changes is refused. The server did not carry it out, so it can be repeated.
        """
        pauses = Backoff(RetryPolicy(longest_s=5.0, retry_s=self._tries_for_s))
        while True:
            try:
                answer = request()
            except _refusals():
                may_pass = self._keys_change and self._was_authorized
                if not may_pass or (pause_s := pauses.failed(time.monotonic())) is None:
                    raise
            else:
                self._was_authorized = True
                return answer
            time.sleep(pause_s)

    @contextmanager
    def _named(self, name: str, verb: str, *, small: bool = True) -> Iterator[None]:
        """Turn errors of the library into a `StoreError` with the object's URL.

        A `small` request is usually answered quickly, so `raycdc.storage.silence` reports it if no answer comes.
        """
        location = self._location.below(name) if name else self._location
        try:
            with self._reporting() if small else nullcontext():
                yield
        except StoreError:
            raise
        except FileNotFoundError as cause:
            raise StoreError(f"{location} cannot be {verb}: there is no such bucket.", lasting=True) from cause
        except _refusals() as cause:
            raise StoreError(
                f"{location} cannot be {verb}: {shown(cause)}. Are the credentials right (see [storage]), and may they "
                f"read, write, list and delete there?",
                lasting=True,
            ) from cause
        except (OSError, _any_of_obstore()) as cause:
            if fault := self._certificate_fault(cause):
                raise StoreError(f"{location} cannot be {verb}: no TLS connection to {fault}", lasting=True) from cause
            raise StoreError(f"{location} cannot be {verb}: {shown(cause)}.") from cause

    def _certificate_fault(self, cause: Exception) -> str:
        """Return the problem of a custom endpoint's certificate, if the library failed because of the certificate;
        else empty.
        """
        if not self._endpoint.startswith("https://") or "InvalidCertificate" not in str(cause):
            return ""
        host, port = endpoint(self._endpoint, 443)
        # The library trusts the same authorities as Python: the system's, or those in the file that the variable names.
        asked = TlsServer(
            host,
            port,
            ca_key=f"the variable {CA_VARIABLE}",
            host_key="storage.endpoint",
            ca=os.environ.get(CA_VARIABLE) or None,
        )
        return first_fault([asked])


def client_of(location: ObjectLocation, settings: StorageSettings, *, tries_for_s: float = TRIES_FOR_S) -> AnyClient:
    """Return a client of the objects below `location`.

    Raises `StoreError` if the settings are unusable; sends no request.
    """
    try:
        return _client_for(location, settings, tries_for_s)
    except ProfileError as cause:
        raise StoreError(f"{location} cannot be opened: {cause}.", lasting=True) from cause
    except (ValueError, _any_of_obstore()) as cause:
        raise StoreError(f"{location} cannot be opened: {shown(cause)}. Is [storage] right?", lasting=True) from cause


def _client_for(location: ObjectLocation, settings: StorageSettings, tries_for_s: float) -> AnyClient:
    from obstore.store import AzureStore, GCSStore, S3Store

    client: ClientConfig = {
        "allow_http": settings.allow_http,
        "timeout": timedelta(seconds=REQUEST_TIMEOUT_S),
        "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
    }
    retries: RetryConfig = {
        "backoff": {
            "init_backoff": timedelta(seconds=FIRST_PAUSE_S),
            "max_backoff": timedelta(seconds=LONGEST_PAUSE_S),
            "base": 2,
        },
        # `retry_timeout` is the effective limit.
        "max_retries": 1000,
        "retry_timeout": timedelta(seconds=tries_for_s),
    }
    prefix = location.prefix or None
    match location.kind:
        case StoreKind.S3:
            settings = with_profile(settings)
            keys = _S3Keys(settings) if settings.changes else None
            # A client that has explicit keys never asks the provider for keys.
            settings = replace(settings, access_key_id="", secret_access_key="", session_token="") if keys else settings
            config = {
                "endpoint": settings.endpoint,
                "region": settings.region,
                "access_key_id": settings.access_key_id,
                "secret_access_key": settings.secret_access_key,
                "session_token": settings.session_token,
                "virtual_hosted_style_request": "" if settings.in_path else "true",
                "skip_signature": "true" if settings.anonymous else "",
            }
            return _opened(partial(S3Store, credential_provider=keys), location.bucket, prefix, config, client, retries)
        case StoreKind.GCS:
            config = {
                "service_account": settings.service_account,
                "base_url": settings.endpoint,
                "skip_signature": "true" if settings.anonymous else "",
            }
            return _opened(GCSStore, location.bucket, prefix, config, client, retries)
        case StoreKind.AZURE:
            given = _AzureKeys(settings) if settings.changes else None
            settings = replace(settings, account_key="", sas_token="") if given else settings
            config = {
                "account_name": account_of(location, settings),
                "account_key": settings.account_key,
                "sas_key": settings.sas_token,
                "endpoint": settings.endpoint,
                "skip_signature": "true" if settings.anonymous else "",
            }
            return _opened(
                partial(AzureStore, credential_provider=given), location.bucket, prefix, config, client, retries
            )


@dataclass(frozen=True, slots=True)
class _S3Keys:
    """Gives a client the present S3 keys. obstore requests the keys before each request if they expire within five
    minutes.
    """

    settings: StorageSettings

    def __call__(self) -> S3Credential:
        now = self.settings.now()
        return {
            "access_key_id": now.access_key_id,
            "secret_access_key": now.secret_access_key,
            "token": now.session_token or None,
            "expires_at": datetime.now(UTC) + _KEYS_GOOD_FOR,
        }


@dataclass(frozen=True, slots=True)
class _AzureKeys:
    """Gives a client the present Azure key: the account's, or a shared access signature."""

    settings: StorageSettings

    def __call__(self) -> AzureAccessKey | AzureSASToken:
        now, ends = self.settings.now(), datetime.now(UTC) + _KEYS_GOOD_FOR
        if now.account_key:
            return {"access_key": now.account_key, "expires_at": ends}
        return {"sas_token": now.sas_token, "expires_at": ends}


def _opened(
    make: Callable[..., _Client],
    bucket: str,
    prefix: str | None,
    config: dict[str, str],
    client: ClientConfig,
    retries: RetryConfig,
) -> _Client:
    given = {key: value for key, value in config.items() if value}
    return make(bucket, prefix=prefix, config=given, client_options=client, retry_config=retries)


def _version(e_tag: str | None, number: str | None) -> Version:
    return Version(e_tag or "", number or "")


def shown(cause: Exception) -> str:
    """Return the first line of the library's error, without the query of the request."""
    return _QUERY.sub("", str(cause).partition("\n")[0]).rstrip(" .")


def _doubtful() -> tuple[type[Exception], ...]:
    """Return the errors after which the object must be read to learn the outcome of a conditional write."""
    from obstore import exceptions

    return (exceptions.AlreadyExistsError, exceptions.PreconditionError, exceptions.GenericError)


def _refusals() -> tuple[type[Exception], ...]:
    from obstore import exceptions

    return (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)


def _is_answer(error: BaseException) -> bool:
    """Return True if the error shows that the store has answered the request."""
    return isinstance(error, (FileNotFoundError, *_refusals())) or (isinstance(error, StoreError) and error.lasting)


def _any_of_obstore() -> type[Exception]:
    from obstore import exceptions

    return exceptions.BaseError


def probe(store: Store) -> None:
    """Raise `StoreError`, with the solution, if the store cannot be used.

    Makes an object below ``_raycdc/`` and deletes it.
    """
    name = f"_raycdc/probe-{uuid.uuid4().hex}"
    store.put_if_absent(name, b"first")
    try:
        second = store.put_if_absent(name, b"second")
    finally:
        store.delete(name)
    if not isinstance(second, PreconditionFailed):
        raise StoreError(
            f"{store.location} is on a server that overwrites an object where it was asked to make a new one "
            "(If-None-Match), so that two writers would lose each other's commits. Use a newer version of that server, "
            "or another store.",
            lasting=True,
        )
