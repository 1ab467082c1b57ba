"""Plays a Dockerfile without Docker: each stage is a folder with a Debian of its own, in which RUN runs by chroot.

It knows the instructions that ``examples/deploy/container/Dockerfile`` has, refuses any other, and needs root and
Debian's ``mmdebstrap``. Nothing of this machine is seen inside but its network, its name server and the certificates
that it trusts.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

#: Of this machine, for a network whose certificates it alone knows.
_SURROUNDINGS = ("etc/resolv.conf", "etc/hosts", "etc/ssl/certs/ca-certificates.crt", "etc/ssl/certs/java/cacerts")
_TIMEOUT_S = 3600
#: In the mount namespace of a command: the folders that a container runtime gives to it.
_MOUNTS = "mount -t proc proc {0}/proc && mount --rbind /dev {0}/dev && mount -t tmpfs none {0}/dev/shm"


@dataclass
class Stage:
    """An image, or a part of one: what the instructions after a FROM say."""

    root: Path
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    user: str = "0:0"
    workdir: str = "/"
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    healthcheck: tuple[str, ...] = ()

    def run(self, words: Sequence[str], *, writable: Sequence[str] = (), read_only: bool = True) -> str:
        """Run a command as a container with its user would, without privileges, and return what it wrote.

        The root is `read_only`, and the folders `writable` are empty ones of memory, in which nothing can be run but
        after ``:exec``, as with Docker's ``--tmpfs``. `AssertionError` where it fails.
        """
        root = shlex.quote(str(self.root))
        steps = [f"mount --bind {root} {root}", _MOUNTS.format(root)]
        for folder, _, may in (each.partition(":") for each in writable):
            steps.append(f"mount -t tmpfs -o mode=1777,nosuid,nodev,{may or 'noexec'} none {root}{folder}")
        steps += [f"mount -o remount,bind,ro {root}"] if read_only else []
        user, _, group = self.user.partition(":")
        inside = ["setpriv", f"--reuid={user}", f"--regid={group or user}", "--clear-groups", "--no-new-privs"]
        inside += ["--bounding-set=-all", "sh", "-c", f"cd {self.workdir} && exec {shlex.join(words)}"]
        steps.append(f"exec /usr/sbin/chroot {root} {shlex.join(inside)}")
        return _done(" && ".join(steps), {**self.environment, "HOME": "/var/cache/raycdc"})

    def build(self, script: str) -> None:
        """RUN."""
        self._trust()
        root = shlex.quote(str(self.root))
        _done(f"{_MOUNTS.format(root)} && exec /usr/sbin/chroot {root} sh -c {shlex.quote(script)}", self.environment)
        self._trust()

    def _trust(self) -> None:
        for name in _SURROUNDINGS:
            if Path("/", name).exists() and (self.root / name).parent.exists():
                shutil.copyfile(Path("/", name), self.root / name)


def _done(script: str, environment: Mapping[str, str]) -> str:
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script]
    done = subprocess.run(
        command, env=dict(environment), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{script}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    return done.stdout


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Each instruction and the rest of its lines."""
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for line in re.sub(r"\\\n", " ", plain).splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            yield name, re.sub(r" +", " ", rest.strip())


def play(dockerfile: Path, context: Path, base: Path, folder: Path) -> dict[str, Stage]:
    """Build all stages below `folder`, each first one on a copy of `base`; returns them by name, the last as ``""``."""
    stages: dict[str, Stage] = {}
    stage = Stage(base)
    for name, rest in instructions(dockerfile.read_text()):
        if name == "FROM":
            origin, _, own = rest.partition(" AS ")
            stage = _begun(stages.get(origin), base, folder / (own or "last"))
            stages[own] = stage
        else:
            _apply(stage, name, rest, context, stages)
    return stages


def _begun(origin: Stage | None, base: Path, root: Path) -> Stage:
    subprocess.run(["cp", "-a", str(origin.root if origin else base), str(root)], check=True)
    if origin is None:
        return Stage(root)
    same = origin.environment.copy(), origin.user, origin.workdir, origin.entrypoint, origin.command
    return Stage(root, *same, origin.healthcheck)


def _apply(stage: Stage, name: str, rest: str, context: Path, stages: Mapping[str, Stage]) -> None:
    match name:
        case "RUN":
            stage.build(f"cd {stage.workdir} && {rest}")
        case "COPY":
            _copy(stage, rest.split(), context, stages)
        case "ENV":
            stage.environment |= dict(word.partition("=")[::2] for word in shlex.split(rest))
        case "WORKDIR":
            stage.workdir = rest
            (stage.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        case "USER":
            stage.user = rest
        case "ENTRYPOINT":
            stage.entrypoint = tuple(json.loads(rest))
        case "CMD":
            stage.command = tuple(json.loads(rest))
        case "HEALTHCHECK":
            stage.healthcheck = tuple(json.loads(rest.partition("CMD ")[2]))
        case _:
            raise NotImplementedError(f"{name} {rest}")


def _copy(stage: Stage, words: list[str], context: Path, stages: Mapping[str, Stage]) -> None:
    options = dict(word.removeprefix("--").partition("=")[::2] for word in words if word.startswith("--"))
    *sources, to = [word for word in words if not word.startswith("--")]
    origin = stages[options["from"]].root if "from" in options else context
    target = stage.root / to.lstrip("/") if to.startswith("/") else stage.root / stage.workdir.lstrip("/") / to
    for each in sources:
        source = origin / each.lstrip("/")
        place = target / source.name if to.endswith("/") else target
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, place, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, place)
            os.chmod(place, int(options.get("chmod", "644"), 8) if "chmod" in options else source.stat().st_mode)  # noqa: PTH101
