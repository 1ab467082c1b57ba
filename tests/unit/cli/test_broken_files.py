"""Files, and values in them, that are no configuration: each is exit code 2 and a sentence, for every command."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from raycdc.cli import main
from raycdc.errors import ExitCode

BASE = """
[pipeline]
name = "shop"
{pipeline}
[source]
type = "mysql"
host = "{host}"
port = {port}
user = "cdc"
password = "{password}"
tables = ["{table}"]
[sink]
type = "jsonl"
path = "{path}"
{rest}
"""


def configured(
    *,
    pipeline: str = "",
    host: str = "127.0.0.1",
    port: str = "1",
    password: str = "x",
    table: str = "shop.t",
    path: str = "./lake",
    rest: str = "",
) -> str:
    """A configuration with something put into it."""
    values = {"pipeline": pipeline, "host": host, "port": port, "password": password}
    return BASE.format(**values, table=table, path=path, rest=rest)


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


#: What stands in the file, or what makes it, and the words of the answer. A new kind of broken file is a line here.
BROKEN: dict[str, tuple[str | bytes | Callable[[Path], None], str]] = {
    "empty": ("", "[source] is missing"),
    "a byte order mark alone": (b"\xef\xbb\xbf", "[source] is missing"),
    "not UTF-8": (configured().encode() + b"# \xe4\n", "is not UTF-8 text"),
    "UTF-16": (configured().encode("utf-16"), "is not UTF-8 text"),
    "no TOML": ("name = ", "is not valid TOML"),
    "a folder": (Path.mkdir, "Is a directory"),
    "a loop of links": (loop, "Too many levels of symbolic links"),
    "a device that never ends": (endless, "is larger than 4 MiB"),
    "lists 3,000 deep": ("a = " + "[" * 3000 + "]" * 3000, "nested too deeply"),
    "tables 3,000 deep": ("a = " + "{a = " * 3000 + "1" + "}" * 3000, "nested too deeply"),
    "a dotted key of 3,000 parts": (configured(rest="[spark.conf]\n" + ".".join("a" * 3000) + " = 1"), "32 deep"),
    "a number of 5,000 digits": (configured(port="9" * 5000), "is not valid TOML"),
    "a port that is none": (configured(port="99999"), "source.port: must be at most 65535"),
    "a port below 0": (configured(port="-1"), "source.port: must be at least 1"),
    "a port that is a date": (configured(port="2024-01-01"), "source.port: must be a whole number"),
    "sections that are none": ('pipeline = 1\nsource = [1]\nsink = "x"', "[pipeline] must be a table"),
    "a section twice": ('[[pipeline]]\nname = "x"', "[pipeline] must be a table"),
    "NUL in the state": (configured(pipeline='state = "a\\u0000b"'), "pipeline.state: holds a NUL character"),
    "NUL in a path": (configured(path="a\\u0000b"), "sink.path: holds a NUL character"),
    "NUL in a host": (configured(host="a\\u0000b"), "source.host: holds a NUL character"),
    "NUL in a table": (configured(table="a.\\u0000b"), "source.tables[0]: holds a NUL character"),
    "NUL in a file's name": (configured(password="${file:a\\u0000b}"), "null byte"),
    "a file that never ends": (configured(password="${file:/dev/zero}"), "it has more than 1 MiB"),
    "a folder for a secret": (configured(password="${file:/}"), "Is a directory"),
    "other bytes in a variable": (configured(host="${env:RAYCDC_TEST_BYTES}"), "source.host: is not UTF-8 text"),
    "a negative interval": (configured(pipeline='epoch_interval = "-2s"'), "must be a duration"),
    "an endless interval": (configured(pipeline="epoch_interval = inf"), "must be a duration"),
    "an interval of eons": (configured(pipeline='epoch_interval = "99999999999999d"'), "must be at most 36500d"),
    "an interval beyond numbers": (configured(pipeline=f'epoch_interval = "{"9" * 400}d"'), "must be at most 36500d"),
    "a size beyond any disk": (
        configured(pipeline=f'epoch_bytes_max = "{"9" * 400}TiB"'),
        "must be at most 1048576TiB",
    ),
    "a size beyond numbers": (configured(pipeline=f"epoch_bytes_max = {'9' * 400}"), "a value is too large"),
    "a pattern beyond reason": (configured(table="a." + "(" * 5000 + ")" * 5000), "is not a regular expression"),
    "a repetition beyond reason": (configured(table="a.b{99999999999}"), "is not a regular expression"),
}


KAFKA = """
[pipeline]
name = "topics"
[source]
type = "kafka"
bootstrap_servers = "127.0.0.1:1"
topics = ["t"]
format = "maxwell-json"
properties = {{ {properties} }}
[sink]
type = "jsonl"
path = "lake"
"""


def link_to_itself(folder: Path) -> None:
    (folder / "odd").symlink_to("odd")


def link_to_nowhere(folder: Path) -> None:
    (folder / "odd").symlink_to("nowhere")


def file(folder: Path) -> None:
    (folder / "odd").write_text("a file")


def nothing(folder: Path) -> None:
    """It is as it is."""


#: The configuration, what is done to the folder that it is in, how commands end, and their words. None of them needs a
#: server; a new kind of odd surroundings is a line here.
ODD: dict[str, tuple[str, Callable[[Path], None], ExitCode, str]] = {
    "a sink's folder is a file": (configured(path="odd"), file, ExitCode.SINK, "odd is a file"),
    "a sink's folder is below a file": (configured(path="odd/x/y"), file, ExitCode.SINK, "odd is a file"),
    "a sink's folder is a link to itself": (configured(path="odd"), link_to_itself, ExitCode.SINK, "leads nowhere"),
    "a sink's folder is below such a link": (configured(path="odd/x"), link_to_itself, ExitCode.SINK, "Too many"),
    "a sink's folder is a link to nowhere": (configured(path="odd"), link_to_nowhere, ExitCode.SINK, "leads nowhere"),
    "a sink's folder is a device": (configured(path="/dev/null"), nothing, ExitCode.SINK, "/dev/null is a file"),
    "a sink's folder is the kernel's": (configured(path="/proc/x"), nothing, ExitCode.SINK, "it is the kernel's"),
    "a sink's folder has a name of 300 letters": (configured(path="x" * 300), nothing, ExitCode.SINK, "too long"),
    "the state is a file": (configured(pipeline='state = "odd"'), file, ExitCode.STATE, "odd is a file"),
    "the state is below a file": (configured(pipeline='state = "odd/x"'), file, ExitCode.STATE, "odd is a file"),
    "the state is the kernel's": (configured(pipeline='state = "/sys/x"'), nothing, ExitCode.STATE, "kernel's"),
    "a host without a name": (configured(host=".."), nothing, ExitCode.CONFIG, "is no host name"),
    "a host's name of 300 letters": (configured(host="x" * 300), nothing, ExitCode.CONFIG, "is no host name"),
    "nobody listens": (configured(), nothing, ExitCode.SOURCE, "Cannot reach 127.0.0.1:1"),
    "Spark Connect": (configured(rest='[spark]\nmaster = "sc://h:15002"'), nothing, ExitCode.CONFIG, "Spark Connect"),
    "no form of a master": (configured(rest='[spark]\nmaster = "bananas"'), nothing, ExitCode.CONFIG, "master: must"),
    "no master at all": (configured(rest='[spark]\nmaster = ""'), nothing, ExitCode.CONFIG, "spark.master: must be"),
    "a master in conf": (
        configured(rest='[spark]\nconf = { "spark.master" = "local" }'), nothing, ExitCode.CONFIG, "beside conf",
    ),
    "an unknown property of librdkafka": (
        KAFKA.format(properties='"no.such.thing" = "1"'), nothing, ExitCode.CONFIG, "source.properties: librdkafka",
    ),
    "a value that librdkafka does not take": (
        KAFKA.format(properties='"socket.timeout.ms" = "soon"'), nothing, ExitCode.CONFIG, "librdkafka refuses",
    ),
    "a certificate that is not there": (
        KAFKA.format(properties='"security.protocol" = "ssl", "ssl.ca.location" = "none.pem"'), nothing,
        ExitCode.CONFIG, "source.properties: librdkafka",
    ),
    "a plug-in of librdkafka that is not there": (
        KAFKA.format(properties='"plugin.library.paths" = "none"'), nothing, ExitCode.CONFIG, "dlopen",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_odd_surroundings_are_told_with_the_right_exit_code(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text, prepare, code, words = ODD[name]
    prepare(tmp_path)
    path = made(tmp_path, text)
    assert main(["run", "--local", str(path)]) == code
    ran = "".join(capfd.readouterr())
    # It goes on to ask the source, which is not there either.
    assert main(["check", "--local", str(path)]) in (code, ExitCode.SOURCE)
    checked = "".join(capfd.readouterr())
    for said in (ran, checked):
        assert words in said
        assert "Traceback" not in said


def made(tmp_path: Path, content: str | bytes | Callable[[Path], None]) -> Path:
    path = tmp_path / "pipeline.toml"
    if callable(content):
        content(path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_configuration_is_told_with_its_place(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(os.environ, "RAYCDC_TEST_BYTES", "\udcff")
    monkeypatch.chdir(tmp_path)
    content, words = BROKEN[name]
    path = made(tmp_path, content)
    for command in ("run", "check", "plan"):
        assert main([command, str(path)]) == ExitCode.CONFIG, name
        out, errors = capfd.readouterr()
        assert words in errors
        assert "Traceback" not in errors
        assert out == ""
    assert [found.name for found in tmp_path.iterdir()] == [path.name], "nothing was made"


def test_a_byte_order_mark_is_no_fault(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = made(tmp_path, b"\xef\xbb\xbf" + configured(port="0").encode())
    assert main(["check", str(path)]) == ExitCode.CONFIG
    assert "source.port: must be at least 1" in capfd.readouterr().err


#: Commands about the state that a configuration names, which need no more of it than that.
ABOUT_THE_STATE: tuple[tuple[str, ...], ...] = (
    ("status", "CONFIG"),
    ("tables", "list", "CONFIG"),
    ("tables", "pause", "CONFIG", "shop.t"),
    ("tables", "add", "CONFIG", "shop.t"),
    ("tables", "resnapshot", "CONFIG", "shop.t"),
    ("state", "check", "CONFIG"),
    ("inspect", "checkpoint", "CONFIG"),
)


@pytest.mark.parametrize("command", ABOUT_THE_STATE, ids=" ".join)
def test_commands_about_a_state_read_its_configuration_as_a_run_does(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["pipeline.toml" if word == "CONFIG" else word for word in command]
    for name in ("not UTF-8", "no TOML", "lists 3,000 deep", "a number of 5,000 digits"):
        content, told = BROKEN[name]
        path = made(tmp_path, content)
        assert main(words) == ExitCode.CONFIG, name
        assert told in capfd.readouterr().err
        path.unlink()
    made(tmp_path, b"\xef\xbb\xbf" + configured().encode())
    assert main(words) == ExitCode.STATE, "its state is looked for behind the byte order mark"
    assert "Traceback" not in capfd.readouterr().err
