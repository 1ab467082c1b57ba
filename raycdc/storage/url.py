"""Locations as configurations and callers name them: a folder of this machine, or a URL of an object store.

| text | place |
|---|---|
| `/srv/lake`, `./lake`, `file:///srv/lake` | a folder of this machine |
| `s3://BUCKET/PREFIX` | Amazon S3, or a server that speaks its API (`storage.endpoint`) |
| `gs://BUCKET/PREFIX` | Google Cloud Storage |
| `az://CONTAINER/PREFIX` | Azure Blob Storage, of the account `storage.account` |
| `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX` | the same, with the account in the URL |

A text such as ``s3a://lake/shop`` is a valid relative path to the operating system, which would make a folder called
``s3a:``. Every unsupported scheme therefore raises an error with the solution.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from urllib.parse import unquote

#: One slash is enough, because `pathlib` removes the second one from a URL.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
#: The form of names of buckets and containers. Names of S3 may be the longest.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")
_AZURE_HOST = re.compile(r"([a-z0-9]{3,24})\.(?:dfs|blob)\.core\.windows\.net")
_LOCAL_HOSTS = ("", "localhost")

#: Schemes of other programs for the same stores, and the scheme to use here.
_SAME_STORE = {
    "s3a": "s3",
    "s3n": "s3",
    "gcs": "gs",
    "azure": "az",
    "adl": "az",
    "wasb": "az",
    "wasbs": "az",
    "abfs": "abfss",
}
_MOUNT = "name a folder of this machine, where other storage may be mounted"
_SUPPORTED = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or a folder"


class StoreKind(StrEnum):
    """The kind of object store, by its API; the value is the scheme of its URLs."""

    S3 = "s3"
    GCS = "gs"
    AZURE = "az"


@dataclass(frozen=True, slots=True)
class FolderLocation:
    """A folder or file of this machine; `path` is the configured text without ``file:``."""

    path: str

    def __str__(self) -> str:
        return self.path

    def below(self, name: str) -> FolderLocation:
        """Return the location `name`, which may contain slashes, below this one."""
        return FolderLocation(f"{self.path}/{name}")


@dataclass(frozen=True, slots=True)
class ObjectLocation:
    """The objects below `prefix` (without slashes at its ends; empty: all) in a bucket or container.

    `account` is the Azure account, if the URL names it.
    """

    kind: StoreKind
    bucket: str
    prefix: str = ""
    account: str = ""

    def __str__(self) -> str:
        """Return the URL, which `parse_location` reads back."""
        if self.account:
            return f"abfss://{self.bucket}@{self.account}.dfs.core.windows.net/{self.prefix}".rstrip("/")
        return f"{self.kind}://{self.bucket}/{self.prefix}".rstrip("/")

    def below(self, name: str) -> ObjectLocation:
        """Return the location `name`, which may contain slashes, below this one."""
        return replace(self, prefix=f"{self.prefix}/{name}" if self.prefix else name)


Location = FolderLocation | ObjectLocation


def parse_location(text: str) -> Location:
    """Return the location that `text` names. Raises ValueError with the solution."""
    scheme = _SCHEME.match(text)
    if scheme is None:
        return FolderLocation(_path(text))
    rest = text[len(scheme[0]) :]
    match name := scheme[1].lower():
        case "file":
            return FolderLocation(_file_path(text, rest))
        case "s3" | "gs" | "az" | "abfss":
            return _object_location(text, name, rest)
        case _:
            raise ValueError(f'"{text}" is a URL, and {scheme[1]}: is not supported; {_way_out(name, rest)}')


def check_location(text: str) -> str:
    """Return `text` in its normal form: a path, or a URL of an object store. Empty text stays empty.

    Raises ValueError with the solution.
    """
    return str(parse_location(text))


def check_local_path(text: str) -> str:
    """Return the path that `text` names, for something that cannot be in an object store. Empty text stays empty.

    Raises ValueError with the solution if it is a URL of an object store.
    """
    match parse_location(text):
        case FolderLocation(path):
            return path
        case ObjectLocation():
            raise ValueError(f'"{text}" is a URL, which is not supported here; {_MOUNT}')


def is_url(text: str) -> bool:
    """Return True if a checked text is a URL of an object store."""
    return _SCHEME.match(text) is not None


def _path(text: str) -> str:
    if text == "~" or text.startswith("~/"):
        raise ValueError(f'"{text}" would be a folder called "~"; write "${{env:HOME}}{text[1:]}"')
    if "\0" in text:
        raise ValueError("holds a NUL character, which no path may")
    return text


def _file_path(text: str, rest: str) -> str:
    """Return the path of ``file:///srv/lake`` and ``file:/srv/lake`` (RFC 8089, 2)."""
    host, slash, path = rest[1:].partition("/") if rest.startswith("/") else ("", "/", rest)
    if host.lower() not in _LOCAL_HOSTS or not slash:
        raise ValueError(f'"{text}" names the machine {host!r}; write "file:///" and the path on this one')
    if path.startswith("/"):
        raise ValueError(f'"{text}" has too many slashes; write "file:///{path.lstrip("/")}"')
    return _path("/" + unquote(path))


def _object_location(text: str, scheme: str, rest: str) -> ObjectLocation:
    if not rest.startswith("/"):
        raise ValueError(f'"{text}" lacks a slash; write "{scheme}://{rest}"')
    authority, _, path = rest[1:].partition("/")
    bucket, at, host = authority.partition("@")
    account = ""
    if scheme == "abfss":
        found = _AZURE_HOST.fullmatch(host.lower())
        if found is None:
            raise ValueError(
                f'"{text}" does not name an account; write "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX", or '
                '"az://CONTAINER/PREFIX" with storage.account'
            )
        account = found[1]
    elif at:
        raise ValueError(f'"{text}" has a user or password in it; give credentials in [storage]')
    if not _BUCKET.fullmatch(bucket):
        raise ValueError(f'"{text}" names no bucket or container; write {_SUPPORTED}')
    return ObjectLocation(StoreKind.AZURE if account else StoreKind(scheme), bucket, _prefix(text, path), account)


def _prefix(text: str, path: str) -> str:
    """Return the prefix of a URL's path.

    Raises ValueError for characters that one of the libraries would change or cut off.
    """
    prefix = path.removesuffix("/")
    for bad in "?#%*\\":
        if bad in prefix:
            raise ValueError(f'"{text}" has a {bad!r} in it, which not every library takes in the name of an object')
    if not prefix.isprintable():
        raise ValueError(f"{text!r} has a control character in it")
    if prefix and any(part in ("", ".", "..") for part in prefix.split("/")):
        raise ValueError(f'"{text}" has an empty part, "." or ".." in it; write the prefix without')
    return prefix


def _way_out(scheme: str, rest: str) -> str:
    if (same := _SAME_STORE.get(scheme)) == "abfss":
        return "write abfss://, which is encrypted"
    if same is not None:
        return f'write "{same}://{rest.lstrip("/")}"' if scheme[0] in "sg" else f"write {same}://CONTAINER/PREFIX"
    if scheme in ("http", "https"):
        return "write s3://BUCKET/PREFIX, and the server's address into storage.endpoint"
    return f"write {_SUPPORTED}, where other storage may be mounted"
