"""Makes the archive with raycdc's files that Spark unpacks next to each executor on other machines.

The archive contains raycdc and the packages that tasks of the sink import, as they are installed here. It never has Ray
or Spark, and has numba for Iceberg and MongoDB only. It is made once per version of these packages, in the user's
cache. Executors need the same minor version of Python, the same system and processor. If raycdc is installed there
already, ``spark.pyspark.python`` names its Python, and nothing is sent.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from raycdc.core.trusted_files import is_own, make_own_folder, user_cache
from raycdc.errors import ConfigError

#: The name of the unpacked folder next to an executor, which is on the path of its Python.
NAME = "raycdc_tasks"
#: The packages, by their names on PyPI, that every task needs. pandas is for users' functions.
_ALWAYS = (
    "annotated-types",
    "msgpack",
    "numpy",
    "pandas",
    "pyarrow",
    "pydantic",
    "pydantic-core",
    "python-dateutil",
    "pytz",
    "six",
    "typing-extensions",
    "typing-inspection",
    "tzdata",
)
#: The packages for loops that are compiled on the executor (`raycdc.core.compiled`): keys of Iceberg, documents of
#: MongoDB.
_COMPILED = ("llvmlite", "numba")
#: The further packages that tasks of one sink need.
_OF_SINKS = {
    "delta": ("obstore",),
    "iceberg": ("obstore", *_COMPILED),
    "jsonl": ("obstore",),
    "parquet": ("obstore",),
    "jdbc": ("adbc-driver-manager", "adbc-driver-postgresql", "importlib-resources", "pymysql"),
    "kafka": ("confluent-kafka",),
    "mongodb": ("cffi", "cryptography", "dnspython", "pymongo", "pymongoarrow", *_COMPILED),
}
#: An archive that no run has used for this long is deleted when another one is made.
_UNUSED_S = 90 * 86_400
#: Parts of paths of files that neither tasks nor users' functions need.
_LEFT_OUT = (
    "/tests/", "/include/", "/__pycache__/", "/numpy/_core/_simd.", "/raycdc/testing/", "/raycdc/cli/",
    "/raycdc/bench/runs/", "/raycdc/bench/splits/", "/raycdc/verify/", "/numpy/f2py/",
)  # fmt: skip
#: The libraries that pyarrow ships under three names; programs load the middle one.
_TWICE = re.compile(r"/pyarrow/libarrow_python\w*\.(so|dylib)(\.\d+\.\d+\.\d+)?$")
_SUFFIXES_LEFT_OUT = (".pyc", ".pyx", ".pxd", ".pxi", ".h", ".hpp", ".cc", ".c", ".lib", ".a")
_PACKAGE = Path(__file__).resolve().parents[1]


def archive(sink: str) -> Path:
    """Return the archive for tasks of `sink` (its type), and make it first if it does not exist, which takes some
    seconds.

    Raises `ConfigError` if it cannot be written.
    """
    files = contents(sink)
    digest = hashlib.sha256()
    for name, path in files:
        status = path.stat()
        # Packages are identified by the times of their files, and raycdc by its content, because it may be a working
        # copy.
        own = path.is_relative_to(_PACKAGE)
        known = hashlib.sha256(path.read_bytes()).hexdigest() if own else f"{status.st_size} {status.st_mtime_ns}"
        digest.update(f"{name}\0{known}\n".encode())
    folder = user_cache()
    made = folder / f"{NAME}-{sys.version_info.major}.{sys.version_info.minor}-{digest.hexdigest()[:16]}.tar.gz"
    if is_own(made):
        os.utime(made)
    else:
        try:
            _make(made, files)
        except OSError as cause:
            raise ConfigError(
                f"The files that Spark's executors need cannot be written to {folder}: {cause.strerror}. Set "
                "XDG_CACHE_HOME to a folder with room, or install raycdc where the executors run, and name "
                "that Python in spark.conf as spark.pyspark.python."
            ) from cause
    return made


def contents(sink: str) -> list[tuple[str, Path]]:
    """Return the names in the archive for tasks of `sink`, and the files of this machine that it gets under these
    names.
    """
    return sorted({**dict(_packages([*_ALWAYS, *_OF_SINKS.get(sink, ())])), **dict(_own())}.items())


def _make(made: Path, files: Sequence[tuple[str, Path]]) -> None:
    make_own_folder(made.parent)
    descriptor, name = tempfile.mkstemp(prefix=f"{NAME}-", dir=made.parent)
    try:
        with (
            os.fdopen(descriptor, "wb") as file,
            tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as packed,
        ):
            for inside, path in files:
                packed.add(path, inside, recursive=False)
        Path(name).rename(made)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    for older in made.parent.glob(f"{NAME}-*.tar.gz"):
        # Younger archives may still be in use, because Spark reads the archive whenever an executor starts.
        if older.stat().st_mtime < time.time() - _UNUSED_S:
            older.unlink(missing_ok=True)


def _packages(names: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Yield the names in the archive, and the files, of those packages that are installed here."""
    for name in names:
        try:
            installed = distribution(name).files or ()
        except PackageNotFoundError:
            continue
        for file in installed:
            inside = file.as_posix()
            if ".." in file.parts or not _wanted(f"/{inside}"):
                continue
            path = Path(str(file.locate()))
            if path.is_file():
                yield inside, path


def _own() -> Iterator[tuple[str, Path]]:
    for path in _PACKAGE.rglob("*"):
        inside = f"{_PACKAGE.name}/{path.relative_to(_PACKAGE).as_posix()}"
        if path.is_file() and path.suffix in (".py", ".toml", ".lock", ".json") and _wanted(f"/{inside}"):
            yield inside, path


def _wanted(inside: str) -> bool:
    left_out = any(part in inside for part in _LEFT_OUT) or inside.endswith(_SUFFIXES_LEFT_OUT)
    return not left_out and not _TWICE.search(inside)
