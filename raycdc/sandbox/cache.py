"""A folder for files that are downloaded or prepared once: server binaries, initialised data folders, jars.

Called by the server classes and by ``make setup``. *Invariant*: an entry exists completely or not at all. A process
builds it under a temporary name, while it has the entry's lock, and then renames it. So several processes may request
an entry at the same time, and a killed build leaves no entry.

Jars are fetched by the Ivy inside Spark, because Spark's own interface takes no classifiers (for example ``tests``). A
coordinate is ``group:name:version`` or ``group:name:version:classifier``. With a ``+`` at its end, the jars on which it
depends are fetched, too. Each jar must have the hash that `raycdc.spark.artifacts` lists; ``python -m
raycdc.sandbox.cache COORDINATES…`` prints the lines for that file.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import file_digest
from pathlib import Path

from raycdc.core.trusted_files import user_cache
from raycdc.spark.artifacts import ArtifactError, java_command, verify


def cache_dir() -> Path:
    """Return the cache folder, which is created if needed: ``$RAYCDC_CACHE``, else ``$XDG_CACHE_HOME/raycdc``, else
    ``~/.cache/raycdc``.
    """
    configured = os.environ.get("RAYCDC_CACHE")
    folder = Path(configured) if configured else user_cache()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the cache's lock `name` within the block.

    Blocks while another process has it; the kernel frees it at exit.
    """
    path = cache_dir() / f"{name}.lock"
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def build_once(name: str, build: Callable[[Path], None]) -> Path:
    """Return the folder `name` of the cache; if it does not exist, build it by ``build(folder)``.

    Blocks while another process builds it.
    """
    final = cache_dir() / name
    if final.is_dir():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    with locked(name.replace("/", "-")):
        if final.is_dir():
            return final
        partial = final.with_name(final.name + ".partial")
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir()
        build(partial)
        partial.rename(final)
    return final


_TIMEOUT_S = 900
_LOG_LINES = 25


def fetch_exactly(into: Path, coordinates: Sequence[str]) -> list[Path]:
    """Put these jars into the folder `into`. Downloads; blocks up to minutes.

    Raises `ArtifactError` if a jar cannot be downloaded, or does not have the expected hash.
    """
    jars = _retrieved(into, coordinates)
    verify(jars)
    return jars


def _retrieved(into: Path, coordinates: Sequence[str]) -> list[Path]:
    import pyspark

    spark = Path(pyspark.__file__).with_name("jars")
    with tempfile.TemporaryDirectory(prefix="raycdc-ivy-") as scratch:
        described = Path(scratch, "ivy.xml")
        described.write_text(_described(coordinates))
        command = [java_command(), f"-Duser.home={scratch}", "-cp", f"{spark}/*", "org.apache.ivy.Main"]
        custom = os.environ.get("RAYCDC_IVY_SETTINGS")
        command += ["-settings", custom] if custom else []
        name = "[organisation]_[artifact]-[revision](-[classifier]).[ext]"
        done = subprocess.run(
            [*command, "-ivy", str(described), "-retrieve", f"{into}/{name}"],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
        )
    jars = sorted(into.glob("*.jar"))
    if done.returncode != 0 or not jars:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-_LOG_LINES:])
        raise ArtifactError(f"{', '.join(coordinates)} could not be fetched. The resolver said:\n{tail}")
    return jars


def _described(coordinates: Sequence[str]) -> str:
    """Return an Ivy module that depends on the coordinates."""
    classifiers: dict[tuple[str, str, str], list[str]] = {}
    whole: set[tuple[str, str, str]] = set()
    for text in coordinates:
        group, name, version, *classifier = text.removesuffix("+").split(":")
        classifiers.setdefault((group, name, version), []).extend(classifier or [""])
        whole |= {(group, name, version)} if text.endswith("+") else set()
    lines = ['<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">']
    lines.append('<info organisation="raycdc" module="jars"/><configurations><conf name="default"/></configurations>')
    lines.append("<dependencies>")
    for module, wanted in classifiers.items():
        group, name, version = module
        conf = "default->default" if module in whole else "default->master"
        lines.append(f'<dependency org="{group}" name="{name}" rev="{version}" conf="{conf}">')
        for one in wanted:
            classified = f' m:classifier="{one}"' if one else ""
            lines.append(f'<artifact name="{name}" type="jar" ext="jar"{classified}/>')
        lines.append("</dependency>")
    return "\n".join([*lines, "</dependencies></ivy-module>"])


def main(coordinates: Sequence[str]) -> int:
    """Print the hashes of the jars in the form of ``artifacts.lock``."""
    with tempfile.TemporaryDirectory(prefix="raycdc-jars-") as folder:
        for jar in _retrieved(Path(folder), coordinates):
            with jar.open("rb") as file:
                print(f"{file_digest(file, 'sha256').hexdigest()}  {jar.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
