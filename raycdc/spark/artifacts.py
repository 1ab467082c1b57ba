"""Fetches Java artifacts by coordinates through the Ivy inside Spark, so no Java build tool is needed.

``python -m raycdc.spark.artifacts FOLDER GROUP:NAME:VERSION…`` puts the named artifacts and their dependencies into
FOLDER. Libraries that Spark itself ships are left out: with two versions on one class path, either of them might be
used. ``RAYCDC_IVY_SETTINGS`` may name an Ivy settings file, for example with a mirror.

``artifacts.lock`` next to this module has the SHA-256 that each jar must have, from any mirror. After a version is
raised, ``python -m raycdc.spark.artifacts --pin GROUP:NAME:VERSION…`` fetches the artifacts and adds their hashes to
that file. Unused lines are removed by hand.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from raycdc.errors import ExitCode, RaycdcError

#: A program for its own process, whose JVM calls Spark's resolver and only copies the jars into a folder. Spark's own
#: option ``spark.jars.packages`` would put the jars on the class path before raycdc can check them.
_RESOLVE = """
import sys
from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway
coordinates, exclude, ivy, settings = sys.argv[1:]
# Ivy also believes the local Maven repository, where a pom without its jar ends the resolution.
options = {"spark.driver.extraJavaOptions": f"-Duser.home={ivy}", "spark.ui.enabled": "false"}
gateway = launch_gateway(conf=SparkConf(loadDefaults=False).setAll(list(options.items())))
try:
    gateway.jvm.org.apache.spark.util.DependencyUtils.resolveMavenDependencies(
        True, exclude or None, coordinates, None, ivy, gateway.jvm.scala.Option.apply(settings or None)
    )
except Exception as error:
    sys.exit(str(error))
finally:
    gateway.shutdown()
"""
_RESOLVE_TIMEOUT_S = 900
#: A file with a SHA-256 and the name of a jar per line, which ``sha256sum`` can check.
LOCK = Path(__file__).with_name("artifacts.lock")
_LOG_LINES = 25


class ArtifactError(RaycdcError):
    """A Java artifact is unavailable, or its hash is wrong."""

    exit_code = ExitCode.CONFIG
    cure = (
        "Install what the text names, such as Java 17, or give the machine a way to Maven's repository once; then "
        "start again."
    )


def java_command() -> str:
    """Return the ``java`` that Spark will use (``$JAVA_HOME/bin/java``, else the one on the path), which must be 17 or
    newer.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        raise ArtifactError(
            "Java is missing (looked at JAVA_HOME and PATH). Spark needs Java 17 or newer: "
            "apt-get install openjdk-17-jre-headless, or unpack any JDK and set JAVA_HOME."
        )
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', answer)
    if version is None or int(version.group(1)) < 17:
        raise ArtifactError(
            f"{java} is not Java 17 or newer (it says: {answer.strip().splitlines()[:1]}). "
            "Install openjdk-17-jre-headless, or set JAVA_HOME to a newer one."
        )
    return java


def fetch(
    into: Path, coordinates: Sequence[str], *, only: str = "*.jar", exclude: Sequence[str] = (), complete: bool = False
) -> list[Path]:
    """Put the jars of `coordinates` and their dependencies into `into`; return those that match `only`.

    Downloads; may block for minutes. `exclude` names dependencies (``group:name``) to leave out. Jars of libraries that
    Spark ships are left out, unless `complete` is True, for a program that does not run in Spark. Raises
    `ArtifactError` if a jar is unavailable or its hash differs from the one in `LOCK`; then no jar is put into `into`.
    """
    with _resolved(coordinates, exclude) as jars:
        shipped = set() if complete else _shipped_with_spark()
        chosen = [jar for jar in jars if jar.match(only) and _library(jar.name.split("_", 1)[1]) not in shipped]
        verify(chosen)
        into.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.move(jar, into / jar.name)) for jar in chosen]


def verify(jars: Sequence[Path]) -> None:
    """Raise `ArtifactError` for the first jar whose hash is not in `LOCK`."""
    known = _locked()
    for jar in jars:
        digest = _digest(jar)
        if jar.name not in known:
            raise ArtifactError(
                f"{jar.name} is not in {LOCK.name}, so nobody knows what it should be. If it is meant, pin it with: "
                "python -m raycdc.spark.artifacts --pin GROUP:NAME:VERSION"
            )
        if digest != known[jar.name]:
            raise ArtifactError(
                f"{jar.name} has the SHA-256 {digest}, and should have {known[jar.name]}: it was changed at the "
                "mirror, on the way or here, and is not used. Fetch it from another mirror (an Ivy settings file named "
                "by RAYCDC_IVY_SETTINGS)."
            )


def pin(coordinates: Sequence[str], *, exclude: Sequence[str] = ()) -> list[str]:
    """Fetch the artifacts, add the hashes of all their jars to `LOCK`, and return the names of the jars."""
    with _resolved(coordinates, exclude) as jars:
        digests = {jar.name: _digest(jar) for jar in jars}
    LOCK.write_text("".join(f"{digest}  {name}\n" for name, digest in sorted((_locked() | digests).items())))
    return list(digests)


def _locked() -> dict[str, str]:
    lines = LOCK.read_text().splitlines() if LOCK.exists() else []
    return {name: digest for digest, name in (line.split() for line in lines)}


def _digest(jar: Path) -> str:
    with jar.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _resolved(coordinates: Sequence[str], exclude: Sequence[str]) -> Iterator[list[Path]]:
    """Resolve `coordinates` and their dependencies, and yield their jars, which exist until the block ends."""
    java_command()
    with tempfile.TemporaryDirectory(prefix="raycdc-ivy-") as scratch:
        words = [",".join(coordinates), ",".join(exclude), scratch, os.environ.get("RAYCDC_IVY_SETTINGS", "")]
        done = subprocess.run(
            [sys.executable, "-c", _RESOLVE, *words],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=_RESOLVE_TIMEOUT_S,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        )
        jars = sorted(Path(scratch, "jars").glob("*.jar"))
        if done.returncode != 0 or not jars:
            lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            tail = "\n".join(lines[-_LOG_LINES:])
            raise ArtifactError(f"{', '.join(coordinates)} could not be fetched. The resolver said:\n{tail}")
        yield jars


def _library(file_name: str) -> str:
    """Return the library's name from a jar's: ``parquet-column`` for ``parquet-column-1.16.0.jar``."""
    return re.split(r"-\d", file_name.removesuffix(".jar"), maxsplit=1)[0]


def _shipped_with_spark() -> set[str]:
    import pyspark

    return {_library(jar.name) for jar in Path(pyspark.__file__).with_name("jars").glob("*.jar")}


def main(arguments: Sequence[str]) -> int:
    """Fetch the artifacts of the arguments ``FOLDER COORDINATES…`` or ``--pin COORDINATES…``, and print their jars.

    An argument that begins with a minus (``-GROUP:NAME``) is a dependency to leave out.
    """
    folder, *words = arguments
    coordinates = [word for word in words if not word.startswith("-")]
    exclude = [word[1:] for word in words if word.startswith("-")]
    try:
        if folder == "--pin":
            print(f"{len(pin(coordinates, exclude=exclude))} jars are pinned in {LOCK.name}")
            return 0
        jars = fetch(Path(folder), coordinates, exclude=exclude)
    except ArtifactError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{len(jars)} jars in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
