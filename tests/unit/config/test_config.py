"""Configuration: every key typed, every problem at once and with its place, references, secrets."""

from __future__ import annotations

import copy
import json
import pickle
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pytest

from raycdc.cli.entry import main
from raycdc.config import Mode, PipelineConfig, PipelineOptions, RouteOptions, Secret, config_from_dict, load_config
from raycdc.config.changes import declared_models, keys_of
from raycdc.config.fields import Deprecated, Options, option, parse_duration, parse_size, show_duration, show_size
from raycdc.config.problems import deprecated_keys
from raycdc.config.reference import json_schema, reference_page
from raycdc.config.sections.pipeline import LeftOutChange, SchemaChange
from raycdc.connectors.mysql.plugin import MySqlSourceConfig, ServerIdRange
from raycdc.errors import ConfigError, ExitCode
from raycdc.model import TableId
from raycdc.model.evolution import EVENT_TYPES
from raycdc.model.rules.rate_limit import RateLimit
from raycdc.plugins import list_plugins, load_plugin
from raycdc.sinks.delta.plugin import DeltaSinkConfig

MINIMAL: dict[str, Any] = {
    "pipeline": {"name": "shop"},
    "source": {"type": "mysql", "user": "cdc", "password": "${env:PW}", "tables": ["shop.orders"]},
    "sink": {"type": "delta", "path": "./lake"},
}
ENVIRONMENT = {"PW": "geheim", "PORT": "3307", "EMPTY": ""}


def config(**sections: dict[str, Any]) -> PipelineConfig:
    """The minimal configuration with keys of `sections` put over it."""
    data = copy.deepcopy(MINIMAL)
    for name, keys in sections.items():
        data[name] = {**data.get(name, {}), **keys}
    return config_from_dict(data, environment=ENVIRONMENT)


def mysql(**keys: Any) -> MySqlSourceConfig:
    source = config(source=keys).source
    assert isinstance(source, MySqlSourceConfig)
    return source


def problems(toml: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        config_from_dict(tomllib.loads(toml), environment=ENVIRONMENT)
    return caught.value.problems


def problem(**sections: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        config(**sections)
    (text,) = caught.value.problems
    return text


@pytest.mark.parametrize(
    ("keys", "sink", "early"),
    [
        ({}, {}, 3600),
        ({"epochs_per_hour": 60}, {}, 60),
        ({"epochs_per_hour": 0}, {}, 0),
        ({"epoch_interval": "2s"}, {}, 0),
        ({"epoch_interval": "30s", "epochs_per_hour": 60}, {}, 60),
        ({}, {"type": "iceberg"}, 3600),
        ({}, {"type": "iceberg", "write": "changelog"}, 0),
        ({"on_existing": "merge"}, {"type": "iceberg"}, 0),
        ({"on_existing": "replace"}, {"type": "iceberg"}, 0),
        ({"epochs_per_hour": 60}, {"type": "iceberg", "write": "changelog"}, 60),
        ({}, {"type": "iceberg", "keep_snapshots": 0}, 0),
        ({}, {"type": "iceberg", "keep_snapshots": 100_000}, 0),
        ({"on_existing": "merge"}, {"type": "iceberg", "write": "changelog", "keep_snapshots": 200}, 3600),
        ({}, {"type": "iceberg", "expire_snapshots": "1d"}, 0),
        ({}, {"type": "iceberg", "expire_snapshots": "1d", "keep_snapshots": 500}, 3600),
        ({}, {"type": "iceberg", "expire_snapshots": "10m"}, 3600),
    ],
)
def test_early_epochs_are_those_that_nobody_minds(keys: dict[str, Any], sink: dict[str, Any], early: int) -> None:
    assert config(pipeline=keys, sink=sink).early_epochs_per_hour == early


def test_defaults_are_those_of_the_design() -> None:
    loaded = config()
    assert loaded.pipeline.state == "./state/shop"
    assert loaded.mode is Mode.CONTINUOUS
    assert loaded.pipeline.epoch_interval == timedelta(seconds=2)
    assert loaded.early_epochs_per_hour == 3600
    assert loaded.pipeline.epoch_bytes_max == 256 << 20
    assert loaded.pipeline.schema_change == "lenient"
    assert (loaded.readers.min, loaded.readers.max) == (1, None)
    assert isinstance(loaded.sink, DeltaSinkConfig)
    assert (loaded.sink.path, loaded.sink.write, loaded.sink.parallelism) == ("./lake", "upsert", 0)
    source = mysql()
    assert (source.host, source.port, source.server_id) == ("127.0.0.1", 3306, ServerIdRange(5400, 5499))
    assert source.heartbeat == timedelta(seconds=30)
    assert source.selector().plain_names == (TableId("shop", "orders"),)
    assert source.settings().password == "geheim"
    assert loaded.warnings == ()


def test_every_problem_is_reported_at_once_with_its_place() -> None:
    text = """
        [pipelin]
        [pipeline]
        name = "a b"
        epoch_interval = 2
        epoch_bytes_max = "12 floz"
        schema_change = "lenent"
        max = 3
        [source]
        type = "mysql"
        prot = 3306
        port = "abc"
        user = 5
        password = "${env:NOPE}"
        tables = ["shop.orders", "x", "a\\\\.(b"]
        server_id = "5-1"
        snapshot = { stratgy = "auto", chunk_rows = 0 }
        tls = "on"
        [readers]
        min = 5
        max = 3
        [[lookup]]
        table = "a.b"
        [sink]
        type = "parqet"
    """
    assert problems(text) == (
        "source.password: the environment variable NOPE is not set (export NOPE=...)",
        'pipelin: unknown section; did you mean "pipeline"?',
        (
            'sink.type: unknown type "parqet"; did you mean "parquet"? '
            "Available: console, delta, iceberg, jdbc, jsonl, kafka, mongodb, parquet"
        ),
        "pipeline.name: may contain letters, digits, '-', '_' and '.' and not begin with a dot, got \"a b\"",
        'pipeline.epoch_interval: must be a duration such as "2s", "500ms" or "1h30m", got 2',
        'pipeline.epoch_bytes_max: must be a size such as "256MiB" or "64kB", got "12 floz"',
        (
            'pipeline.schema_change: "lenent" is not one of fail, evolve, try_evolve, lenient, ignore; '
            'did you mean "lenient"?'
        ),
        "pipeline.max: unknown key here; it belongs into [readers]",
        'source.port: must be a whole number, got "abc"',
        "source.user: must be text (in quotes), got 5",
        'source.server_id: must lie between 1 and 4294967295, smaller end first, got "5-1"',
        "source.tables[1]: 'x' can match no table: it needs DATABASE.TABLE, e.g. 'shop.orders'",
        r"source.tables[2]: 'a\.(b' is not a regular expression: missing ), unterminated subpattern at character 4",
        'source.tls: must be a table, such as { key = "value" }, got "on"',
        "source.snapshot.chunk_rows: must be at least 1, got 0",
        'source.snapshot.stratgy: unknown key; did you mean "strategy"?',
        'source.prot: unknown key; did you mean "port"?',
        "readers: min = 5 is more than max = 3",
        'lookup[0].uri: is required, e.g. uri = "${env:MONGODB_URI}"',
        'lookup[0].collection: is required, e.g. collection = "crm.users"',
        'lookup[0].on: is required, e.g. on = { user_id = "_id" }',
        'lookup[0].columns: is required, e.g. columns = { name = "string", address = "json" }',
    )


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        ({"source": {"tables": []}}, 'source.tables: must not be empty, e.g. tables = ["shop.orders"]'),
        ({"source": {"tables": "shop.orders"}}, 'source.tables: must be a list, such as ["a", "b"], got "shop.orders"'),
        ({"source": {"port": 70000}}, "source.port: must be at most 65535, got 70000"),
        (
            {"source": {"server_id": "abc"}},
            'source.server_id: must be a number such as 5400 or a range such as "5400-5499", got "abc"',
        ),
        (
            {"source": {"type": "mysq"}},
            'source.type: unknown type "mysq"; did you mean "mysql"? Available: datagen, kafka, mongodb, mysql',
        ),
        (
            {"source": {"type": "oracle"}},
            'source.type: unknown type "oracle". Available: datagen, kafka, mongodb, mysql',
        ),
        ({"sink": {"type": 5}}, 'sink.type: is required, e.g. type = "delta"'),
        (
            {"sink": {"type": "jsonl", "write": "upsert"}},
            'sink.write: jsonl can only append; use write = "changelog", or a sink that merges, such as delta',
        ),
        ({"sink": {"path": ""}}, 'sink.path: must not be empty, e.g. path = "./lake"'),
        (
            {"ray": {"address": "there"}},
            'ray.address: must be "local", "auto" or "HOST:PORT", got "there"',
        ),
        ({"pipeline": {"epoch_bytes_max": 0}}, "pipeline.epoch_bytes_max: must be more than 0 bytes, got 0"),
        (
            {"readers": {"frobnicate": 1}},
            "readers.frobnicate: unknown key. Known: cpus, fetchers, labels, max, min, resources",
        ),
        (
            {"pipeline": {"exclude_schema_changes": ["truncate"]}},
            (
                'pipeline.exclude_schema_changes[0]: "truncate" is not one of add_column, drop_column, rename_column, '
                "alter_column_type, alter_column_position, alter_table_comment, truncate_table, drop_table; "
                'did you mean "truncate_table"?'
            ),
        ),
    ],
)
def test_a_problem_says_what_and_where(sections: dict[str, dict[str, Any]], text: str) -> None:
    assert problem(**sections) == text


def test_schema_changes_left_out_are_the_excluded_ones_and_those_not_included() -> None:
    options = PipelineOptions(
        name="a",
        include_schema_changes=("create_table", "add_column", "truncate_table"),
        exclude_schema_changes=("truncate_table",),
    )
    kept = {"create_table", "add_column", "alter_primary_key", "rename_table"}
    assert options.schema_changes_left_out == set(EVENT_TYPES) - kept
    assert PipelineOptions(name="a").schema_changes_left_out == set()
    assert set(get_args(SchemaChange)) == set(EVENT_TYPES) > set(get_args(LeftOutChange))
    assert problem(pipeline={"include_schema_changes": ["add_colum"]}).endswith('did you mean "add_column"?')


def test_missing_sections_are_named() -> None:
    assert problems("") == (
        '[source] is missing. Add it, with type = "mysql"',
        '[sink] is missing. Add it, with type = "delta"',
        'pipeline.name: is required, e.g. name = "shop"',
    )


def test_references_are_resolved_everywhere(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("aus der Datei\n", encoding="utf-8")
    source = mysql(
        host="${env:HOST:-db1}.example",
        port="${env:PORT}",
        password=f"${{file:{secret}}}",
        tables=["${env:DB:-shop}.a"],
    )
    assert (source.host, source.port, source.tables) == ("db1.example", 3307, ("shop.a",))
    assert source.password.reveal() == "aus der Datei"
    assert mysql(user="$${env:PW}").user == "${env:PW}"
    assert mysql(password="${env:EMPTY:-x}").password.reveal() == ""


def test_what_a_reference_names_must_exist(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert problem(source={"password": f"${{file:{missing}}}"}) == (
        f"source.password: the file {missing} cannot be read: No such file or directory"
    )
    assert problem(source={"tables": ["a.b", "${env:NOPE}"]}) == (
        "source.tables[1]: the environment variable NOPE is not set (export NOPE=...)"
    )
    assert problem(source={"host": "${vault:x}"}) == (
        "source.host: ${vault:x} is no reference; known are ${env:NAME}, ${file:PATH}, ${command:WORDS} and "
        "${plugin:NAME ARGUMENT}"
    )


def test_a_literal_password_works_with_a_warning() -> None:
    loaded = config(source={"password": "klar"})
    assert loaded.warnings == (
        (
            "source.password is written in the configuration; keep it out of files with "
            'password = "${env:PASSWORD}" or "${file:PATH}"'
        ),
    )


def test_a_url_of_this_machine_without_an_account_hides_nothing() -> None:
    def warned(url: str) -> bool:
        notify = [{"type": "webhook", "url": url, "on": ["table_parked"], "allow_http": True}]
        loaded = config_from_dict({**copy.deepcopy(MINIMAL), "notify": notify}, environment=ENVIRONMENT)
        return any("keep it out of files" in text for text in loaded.warnings)

    assert [url for url in ("http://127.0.0.1:9/hook", "http://localhost/x", "http://[::1]:9") if warned(url)] == []
    assert warned("http://127.0.0.1/x?token=secret")
    assert warned("https://hooks.example/T0/B0/secret")


def test_secrets_never_show() -> None:
    loaded = config(spark={"conf": {"spark.hadoop.fs.s3a.secret.key": "abc123"}})
    shown = f"{loaded!r} {loaded!s} {loaded.source!r} {loaded.source} {mysql().settings()!r}"
    shown += json.dumps(loaded.source.model_dump(mode="json"))
    assert "geheim" not in shown
    assert "abc123" not in shown
    assert "***" in shown
    assert problem(source={"port": "${env:PW}"}) == "source.port: must be a whole number"
    assert problem(source={"password": 12345}) == "source.password: must be text (in quotes)"


def test_secrets_survive_pickling_and_compare_by_value() -> None:
    assert pickle.loads(pickle.dumps(config())) == config()
    assert Secret("a") != Secret("b")


def test_spark_settings_may_be_nested_and_of_any_type() -> None:
    text = '[spark.conf]\nspark.driver.memory = "4g"\n"spark.ui.enabled" = false\nspark.cores.max = 2\n'
    loaded = config(**tomllib.loads(text))
    assert loaded.spark.conf == {"spark.driver.memory": "4g", "spark.ui.enabled": "false", "spark.cores.max": "2"}


@pytest.mark.parametrize(
    ("sections", "from_bytes", "is_local"),
    [
        ({}, 4 << 20, False),
        ({"pipeline": {"engines": "always"}}, 0, False),
        ({"pipeline": {"engines": "never"}}, 4 << 20, True),
        ({"spark": {"from_bytes": "1MiB"}}, 1 << 20, False),
        ({"pipeline": {"engines": "always"}, "spark": {"from_bytes": "1MiB"}}, 1 << 20, False),
    ],
)
def test_engines_say_from_which_size_on_spark_writes_epochs(
    sections: dict[str, Any], from_bytes: int, is_local: bool
) -> None:
    loaded = config(**sections)
    assert (loaded.spark_from_bytes, loaded.is_local) == (from_bytes, is_local)


def test_the_key_that_engines_took_the_place_of_is_named_by_what_stands_for_it() -> None:
    assert problem(pipeline={"start_in_process": False}) == (
        'pipeline.start_in_process: unknown key; write engines = "auto" instead of true, engines = "always" instead of '
        "false"
    )
    assert problem(pipeline={"engines": "allways"}) == (
        'pipeline.engines: "allways" is not one of auto, always, never; did you mean "always"?'
    )


def test_startup_with_a_snapshot_only_ends_the_run_after_it() -> None:
    assert config(source={"startup": {"mode": "snapshot"}}).mode is Mode.SNAPSHOT


def test_more_readers_at_least_than_at_most_are_refused_and_the_default_maximum_is_no_limit() -> None:
    assert config(readers={"min": 6}).readers.max is None
    with pytest.raises(ConfigError, match="min = 6 is more than max = 4"):
        config(readers={"min": 6, "max": 4})


@pytest.mark.parametrize(
    ("text", "size"), [("256MiB", 256 << 20), ("64 kB", 64_000), ("1.5GiB", 3 << 29), (1024, 1024), ("7B", 7)]
)
def test_sizes(text: object, size: int) -> None:
    assert parse_size(text) == size
    assert parse_size(show_size(size)) == size


@pytest.mark.parametrize(
    ("text", "seconds"), [("2s", 2), ("500ms", 0.5), ("1h30m", 5400), ("1.5 min", 90), ("2 d", 172_800)]
)
def test_durations(text: str, seconds: float) -> None:
    span = timedelta(seconds=seconds)
    assert parse_duration(text) == span
    assert parse_duration(show_duration(span)) == span


@pytest.mark.parametrize("text", ["", "2", "s", "2x", "2s!", "-2s", "0s", 5, None])
def test_odd_durations_are_refused(text: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["", "MiB", "-1", "2 parsecs", 0, -5, True, 1.5])
def test_odd_sizes_are_refused(text: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_size(text)


def test_file_errors_name_the_file(tmp_path: Path) -> None:
    missing, broken, binary, wrong = (tmp_path / name for name in ("none", "broken", "binary", "wrong"))
    broken.write_text("[pipeline\n")
    binary.write_bytes(b"\xff\xfe")
    wrong.write_text('[pipeline]\nname = "x"\n[source]\ntype = "mysql"\nuser = "u"\ntables = ["a.b"]\nprot = 1\n')
    expected = {
        missing: f"{missing} cannot be read: No such file or directory. Write one with: raycdc init {missing}",
        broken: f"{broken} is not valid TOML: Expected ']' at the end of a table declaration (at line 1, column 10)",
        binary: f"{binary} is not UTF-8 text: invalid start byte at byte 0",
        wrong: (
            f"{wrong} has 2 problems:\n"
            '  [sink] is missing. Add it, with type = "delta"\n'
            '  source.prot: unknown key; did you mean "port"?'
        ),
    }
    for path, text in expected.items():
        with pytest.raises(ConfigError) as caught:
            load_config(path)
        assert str(caught.value) == text


def test_built_in_plugins_come_through_the_same_door_and_load() -> None:
    assert [(p.group.value, p.type, p.error) for p in list_plugins()] == [
        *(("raycdc.sources", name, None) for name in ("datagen", "kafka", "mongodb", "mysql")),
        *(
            ("raycdc.sinks", name, None)
            for name in ("console", "delta", "iceberg", "jdbc", "jsonl", "kafka", "mongodb", "parquet")
        ),
        *(
            ("raycdc.formats", name, None)
            for name in ("canal-json", "debezium-json", "json", "maxwell-json", "ogg-json")
        ),
    ]


def test_reference_page_explains_every_key() -> None:
    rows = [line for line in reference_page().splitlines() if line.startswith("| `")]
    assert len(rows) > 40
    assert [row for row in rows if row.endswith("|  |")] == []
    assert '| `epoch_bytes_max` | size | `"256MiB"` |' in reference_page()


def models_of_options() -> list[type[Options]]:
    """Every model that a configuration may have: those of all plug-ins, and all that are defined beside them."""
    for listing in list_plugins():
        load_plugin(listing.group, listing.type)
    found, pending = [], [Options]
    while pending:
        subclasses = pending.pop().__subclasses__()
        pending += subclasses
        found += [model for model in subclasses if model.__module__.startswith("raycdc.")]
    return found


def keys_in_no_row(models: list[type[Options]], page: str) -> list[str]:
    """``Model.key`` of each key that the page has no row of."""
    rows = {line.split("`")[1].rpartition(".")[2] for line in page.splitlines() if line.startswith("| `")}
    # A table's own key is in front of the keys in it.
    tables = {part for line in page.splitlines() if line.startswith("| `") for part in line.split("`")[1].split(".")}
    names = [(model, name, field.alias or name) for model in models for name, field in model.model_fields.items()]
    return [f"{model.__name__}.{name}" for model, name, key in names if key not in rows | tables]


def test_reference_page_has_every_model_of_options() -> None:
    models, page = models_of_options(), reference_page()
    assert {"MySqlSourceConfig", "FormatOptions", "DebeziumOptions"} <= {model.__name__ for model in models}
    assert keys_in_no_row(models, page) == []
    for listing in list_plugins():
        assert f'"{listing.type}"' in "".join(line for line in page.splitlines() if line.startswith("## ")), listing

    class Forgotten(Options):
        forgotten_key: int = 1

    assert keys_in_no_row([Forgotten], page) == ["Forgotten.forgotten_key"]


def test_json_schema_describes_a_whole_configuration() -> None:
    schema = json_schema()
    assert schema["required"] == ["pipeline", "source", "sink"]
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["PipelineOptions"]["properties"]["epoch_interval"]["default"] == "2s"
    assert "geheim" not in json.dumps(schema)


class Inner(Options):
    old: int = option(1, help="h", deprecated=Deprecated("0.3.0", "Leave it out."))
    new: int = option(1, help="h")


class Outer(Options):
    inner: Inner = option(Inner(), help="h")
    gone: Inner = option(Inner(), help="h", deprecated=Deprecated("0.4.0", "Write outer.inner instead."))
    from_: str = option("", help="h", alias="from", deprecated=Deprecated("0.5.0", "Write outer.to instead."))


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ({}, []),
        ({"inner": {"new": 2}}, []),
        ({"inner": {"old": 1}}, ["outer.inner.old is deprecated since 0.3.0. Leave it out."]),
        ({"gone": {"new": 2}}, ["outer.gone is deprecated since 0.4.0. Write outer.inner instead."]),
        ({"from": "x"}, ["outer.from is deprecated since 0.5.0. Write outer.to instead."]),
    ],
)
def test_a_deprecated_key_is_told_where_it_is_written(written: dict[str, Any], told: list[str]) -> None:
    assert list(deprecated_keys(Outer.model_validate(written), ("outer",))) == told


def test_check_and_run_warn_of_a_deprecated_key_and_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = {"deprecated": True, "since": "9.1.0", "instead": "Write epochs_per_hour instead."}
    field, entry = PipelineOptions.model_fields["epoch_bytes_max"], RouteOptions.model_fields["replace_symbol"]
    monkeypatch.setattr(field, "json_schema_extra", {**(field.json_schema_extra or {}), **planted})  # type: ignore[dict-item]
    monkeypatch.setattr(entry, "json_schema_extra", planted)
    file = tmp_path / "p.toml"
    file.write_text(
        'pipeline = { name = "p", state = "state", epoch_bytes_max = "7MB" }\n'
        'source = { type = "datagen", tables = ["a.b"] }\nsink = { type = "console" }\ncontrol = { enabled = false }\n'
        'route = [{ table = "a.b", to = "c.<>", replace_symbol = "<>" }]\n'
    )
    assert load_config(file).pipeline.epoch_bytes_max == 7_000_000
    told = [
        "Warning: pipeline.epoch_bytes_max is deprecated since 9.1.0. Write epochs_per_hour instead.",
        "Warning: route[0].replace_symbol is deprecated since 9.1.0. Write epochs_per_hour instead.",
    ]
    main(["check", str(file), "--local"])
    assert capsys.readouterr().err.splitlines()[:2] == told
    # It goes no further than to the page that it does not have.
    assert main(["run", str(file), "--local", "--ui"]) == ExitCode.CONFIG
    assert capsys.readouterr().err.splitlines()[:2] == told
    assert "**Deprecated since 9.1.0.** Write epochs_per_hour instead. |" in reference_page()


def test_no_key_is_deprecated_without_a_word_in_the_changelog() -> None:
    changelog = (Path(__file__).parents[3] / "CHANGELOG.md").read_text()
    for section, model in declared_models():
        for key, field in keys_of(model):
            assert Deprecated.of(field) is None or f"`{section.partition(':')[0]}.{key}`" in changelog, key


def test_a_pace_is_more_than_nothing_and_belongs_to_every_source() -> None:
    assert not mysql().rate_limit
    assert mysql(rows_per_second=5, bytes_per_second="2kB").rate_limit == RateLimit(5, 2000)
    assert str(RateLimit(20_000, 2000)) == "20,000 rows and 2,000 bytes a second"
    assert problem(source={"rows_per_second": 0}) == "source.rows_per_second: must be at least 1, got 0"
    assert problem(source={"rows_per_second": -3}) == "source.rows_per_second: must be at least 1, got -3"
    assert problem(source={"bytes_per_second": 0}) == "source.bytes_per_second: must be more than 0 bytes, got 0"
    topics = {"type": "kafka", "bootstrap_servers": "b:1", "topics": ["t"], "format": {"type": "debezium-json"}}
    datagen = {"type": "datagen", "tables": ["a.b"]}
    collections = {"type": "mongodb", "uri": "mongodb://m/", "collections": ["a.b"]}
    for source in (topics, datagen, collections):
        paced = {**source, "rows_per_second": 7}
        text = {"pipeline": {"name": "p", "state": "s"}, "sink": {"type": "console"}, "source": paced}
        assert config_from_dict(text, environment=ENVIRONMENT).source.rate_limit == RateLimit(rows_per_s=7)
