"""``raycdc init`` where no server is needed: what any plug-in has by its section alone, answers, and secrets."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Literal

import pytest

from raycdc import plugins
from raycdc.cli.entry import main
from raycdc.cli.init import InitOptions, parse_answers, write_config
from raycdc.config import SinkConfig, load_config, option
from raycdc.errors import ConfigError, ExitCode
from raycdc.plugins import Plugin, PluginGroup


class Terminal(io.StringIO):
    """Standard input with somebody before it."""

    def isatty(self) -> bool:
        return True


class LedgerConfig(SinkConfig):
    """A third party's sink whose `path` is no lake."""

    type: Literal["ledger"] = option("ledger", help="A ledger.")
    path: str = option(help="The ledger's file.", example="./ledger.db")


LEDGER = Plugin("ledger", "a ledger", LedgerConfig, "builtins:repr")


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The sink `LEDGER` is announced beside the installed ones."""
    own = EntryPoint("ledger", f"{__name__}:LEDGER", PluginGroup.SINKS.value)

    def announced(*, group: str) -> list[EntryPoint]:
        return [*entry_points(group=group), *([own] if group == own.group else [])]

    monkeypatch.setattr(plugins, "entry_points", announced)
    plugins._discover.cache_clear()
    yield
    plugins._discover.cache_clear()


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.chdir(tmp_path)
    return tmp_path / "pipeline.toml"


def init(
    config: Path,
    *answers: str,
    source: str = "datagen",
    sink: str = "delta",
    tables: Sequence[str] = ("shop.orders",),
    force: bool = False,
) -> str:
    """What is written."""
    given = {"sink.path": "./lake"} | parse_answers(answers)
    write_config(config, InitOptions(source, sink, given, tuple(tables), None), force=force)
    return config.read_text()


def test_a_source_without_a_page_of_its_own_is_asked_by_its_section(config: Path) -> None:
    text = init(config)
    assert '[source]\ntype = "datagen"\ntables = ["shop.orders"]\n' in text
    read = load_config(config)
    assert (read.pipeline.name, read.source.type, read.sink.type, read.sink.folder) == (
        "shop",
        "datagen",
        "delta",
        "./lake",
    )


def test_people_are_asked_for_tables_that_no_server_can_list(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("shop.orders, shop.users\n"))
    assert 'tables = ["shop.orders", "shop.users"]' in init(config, tables=())
    assert capsys.readouterr().out.startswith("Tables (names, separated by commas): Wrote ")


def test_without_a_terminal_the_option_that_is_missing_is_named(config: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--table is required if no person can be asked"):
        init(config, tables=())
    with pytest.raises(ConfigError, match=r"^--answer sink\.url=\.\.\. is required if no person can be asked"):
        init(config, sink="jdbc")
    assert not config.exists()


def test_an_answer_that_nobody_asks_for_is_refused(config: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--user does not belong to source type datagen with sink type delta, whi"):
        init(config, "user=me")
    with pytest.raises(ConfigError, match=r"^--answer seed is not KEY=VALUE$"):
        init(config, "seed")
    with pytest.raises(ConfigError, match=r"^--source: unknown type"):
        init(config, source="nothing")


def test_a_key_that_is_told_like_an_option_is_shown_the_way(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(config), "--source", "datagen", "--rows", "5"]) == ExitCode.CONFIG
    said = capsys.readouterr().err
    assert "No such option: --rows" in said
    assert "source's section are --answer KEY=VALUE; those of the sink's, --answer sink.KEY=VALUE" in said
    assert not config.exists()


def test_a_file_that_is_there_is_kept_unless_forced(config: Path) -> None:
    config.write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        init(config)
    assert config.read_text() == "mine"
    assert init(config, force=True) != "mine"


def test_a_sink_gets_what_it_needs_and_its_secret_stays_a_reference(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("JDBC_PASSWORD", raising=False)
    server = ("sink.url=jdbc:postgresql://127.0.0.1:5432/lake", "sink.user=cdc")
    with pytest.raises(ConfigError, match="has a password, which others can see") as refused:
        init(config, *server, "sink.password=s3cret", sink="jdbc")
    assert "s3cret" not in str(refused.value)
    text = init(config, *server, sink="jdbc")
    assert 'password = "${env:JDBC_PASSWORD}"' in text
    assert "Before a run: the environment variable JDBC_PASSWORD is not set" in capsys.readouterr().out
    monkeypatch.setenv("JDBC_PASSWORD", "s3cret")
    assert load_config(config).sink.type == "jdbc"
    assert "Before a run" not in capsys.readouterr().out


@pytest.mark.parametrize(("sink", "path"), [("delta", "./lake"), ("parquet", "./lake"), ("ledger", "./ledger.db")])
def test_a_path_that_nobody_gives_is_the_example_of_its_own_key(
    config: Path, ledger: None, sink: str, path: str
) -> None:
    write_config(config, InitOptions("datagen", sink, {}, ("shop.orders",), None), force=False)
    assert f'path = "{path}"' in config.read_text()


@pytest.mark.parametrize("sink", ["parquet", "jsonl", "iceberg", "console"])
def test_what_is_written_for_each_sink_can_be_read(config: Path, sink: str) -> None:
    init(config, sink=sink)
    assert load_config(config).sink.type == sink


def test_what_is_no_sink_by_that_name_and_a_place_that_is_none_are_told_with_the_way_out(config: Path) -> None:
    with pytest.raises(ConfigError, match=r"--sink jdbc, with --answer sink\.url=jdbc:postgresql://HOST:PORT/DATABASE"):
        init(config, sink="postgres")
    with pytest.raises(ConfigError, match=r"nowhere/a\.toml cannot be written: there is no folder .*Make it"):
        init(config.parent / "nowhere" / "a.toml")
    (config.parent / "folder").mkdir()
    with pytest.raises(ConfigError, match=r"folder cannot be written: Is a directory\. Name a file"):
        init(config.parent / "folder", force=True)


def test_a_changelog_may_be_asked_for_where_the_sink_has_the_choice(config: Path) -> None:
    assert 'write = "changelog"' in init(config, "sink.write=changelog")
    assert load_config(config).sink.write == "changelog"
    with pytest.raises(ConfigError, match=r"^--answer sink\.write=\.\.\. does not belong to"):
        init(config, "sink.write=upsert", sink="jsonl", force=True)
