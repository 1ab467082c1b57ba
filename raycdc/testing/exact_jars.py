"""Jars by coordinates with classifiers (a project's tests, say), through the Ivy inside Spark; Spark's own way to it
takes none.

A coordinate is ``group:name:version`` or ``group:name:version:classifier``; with ``+`` at its end the jars that it
depends on come, too. Each jar must have its hash of `raycdc.spark.artifacts`; ``python -m raycdc.testing.exact_jars
COORDINATES…`` prints the lines for that file.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from hashlib import file_digest
from pathlib import Path

from raycdc.spark.artifacts import ArtifactError, java_command, verify

_TIMEOUT_S = 900
_LOG_LINES = 25


def fetch_exactly(into: Path, coordinates: Sequence[str]) -> list[Path]:
    """Put these jars into the folder `into`. Downloads; blocks up to minutes. `ArtifactError` when one cannot be had,
    or is another one than it should be.
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
    """The coordinates as a module of Ivy's that depends on them."""
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
    """Print the hashes of the jars, as ``artifacts.lock`` has them."""
    with tempfile.TemporaryDirectory(prefix="raycdc-jars-") as folder:
        for jar in _retrieved(Path(folder), coordinates):
            with jar.open("rb") as file:
                print(f"{file_digest(file, 'sha256').hexdigest()}  {jar.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
