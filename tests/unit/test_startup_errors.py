"""Every named error that a start may end with is one that `raycdc check` reaches: by a check of the list, or its own.

A new `raise` in the modules of a start fails here, until it stands in a check that both commands make (best), or in the
table below with the check that finds the same. What only servers can say of a run under way is not of the start.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raycdc.config import config_from_dict
from raycdc.driver.source_side import limits_of
from raycdc.driver.startup_checks import START_CHECKS, Start
from raycdc.errors import ConfigError, SegmentUnavailableError
from raycdc.model import TableId
from raycdc.plugins import PluginGroup, list_plugins, load_plugin
from raycdc.runtime.scaling import SeenNode
from raycdc.segments.access import SegmentAccess
from raycdc.segments.reading import segment_schema
from raycdc.sinks.api import Sink
from raycdc.state.manifests.manifest import Segment

PACKAGE = Path(__file__).resolve().parents[2] / "raycdc"
ERRORS = set(re.findall(r"class (\w+Error)\(", (PACKAGE / "errors.py").read_text()))

#: The modules that a start goes through before its first epoch, and of each the functions that only run later.
STARTUP = {
    "pipeline.py": {"Pipeline.ledger", "_end_of"},
    "driver/data_side.py": set[str](),
    "driver/source_side.py": set[str](),
    "driver/fitting.py": set[str](),
    "driver/resolve.py": {"ResolvedRun.require_rows"},
    "driver/startup_checks.py": set[str](),
    "state/configured.py": set[str](),
    "spark/session.py": set[str](),
    "spark/lifecycle.py": {"SparkThread.poll", "SparkThread.again", "MemoryEnds.require_few"},
    "runtime/ray/ray_private.py": set[str](),
    "runtime/ray/ray_launcher.py": set[str](),
    "sinks/targets.py": set[str](),
    "sinks/steps.py": set[str](),
    "sinks/delta/sink.py": set[str](),
    "sinks/delta/target.py": set[str](),
    "sinks/delta/maintenance.py": set[str](),
    "sinks/files/sink.py": set[str](),
    "sinks/files/folder_target.py": set[str](),
    "sinks/iceberg/sink.py": set[str](),
    "sinks/iceberg/target.py": set[str](),
    "sinks/jdbc/sink.py": set[str](),
    "sinks/jdbc/target.py": set[str](),
    "sinks/kafka/sink.py": {
        "Topics.__contains__",
        "Topics.partitions",
        "Topics.create",
        "Topics.has_messages",
        "Topics._listed",
    },
    "sinks/mongodb/sink.py": set[str](),
    "sinks/mongodb/target.py": set[str](),
    "delivery/epoch_recovery.py": set[str](),
    "delivery/targets/target_records.py": {"TargetRecords.check_ours"},
    "connectors/mysql/source.py": set[str](),
    "connectors/mysql/table_probe.py": {"_probed"},
    "connectors/mongodb/source.py": {"MongoDbSource.require_rows"},
    "connectors/mongodb/stream/raw_stream.py": {"RawStream.__init__", "_react"},
    "connectors/kafka/source.py": {"KafkaTrialReader.read"},
    "source/as_begun.py": set[str](),
}
#: Of sinks: what is asked of them before the first epoch.
OF_SINKS = re.compile(
    r"(\w+\.)?(__init__|open|_open|inspect|require_free|_on_existing|_connect|read_state|taken|occupied_error|check_write|require)$"
)

#: Where each error is raised → the check that finds it: a name of `START_CHECKS`, or a function of the command.
FOUND_BY = {
    "driver/startup_checks.py: _plug_ins": "plug-ins",
    "driver/startup_checks.py: _listening": "control",
    "driver/startup_checks.py: _traces": "traces",
    "driver/startup_checks.py: require": "every one",
    "driver/startup_checks.py: order_by": "options",
    "driver/startup_checks.py: _options": "options",
    "driver/startup_checks.py: require_row_store": "check_changelog",
    "spark/session.py: check_java": "java",
    "spark/session.py: check_pyspark": "java",
    "spark/session.py: delta_jars": "java",
    "spark/session.py: fetch_delta_jars": "spark",
    "spark/session.py: check_settings": "spark",
    "spark/session.py: spark_session": "check_transforms",
    "delivery/epoch_recovery.py: EpochRecovery.run": "check_targets",
    "delivery/epoch_recovery.py: EpochRecovery.inspect": "check_targets",
    "delivery/epoch_recovery.py: EpochRecovery._check_record": "check_targets",
    "delivery/targets/target_records.py: TargetRecords.check_record": "check_targets",
    "sinks/targets.py: check_write": "options",
    "sinks/targets.py: occupied_error": "check_targets",
    "sinks/delta/maintenance.py: DeltaMaintenance.__init__": "options",
    "sinks/jdbc/sink.py: JdbcSink._connect": "check_sink",
    "sinks/kafka/sink.py: Topics.require": "check_sink",
    "sinks/mongodb/sink.py: MongoDbSink.inspect": "check_sink",
    "sinks/delta/target.py: DeltaSteps.read_state": "check_targets",
    "sinks/jdbc/target.py: JdbcSteps.read_state": "check_targets",
    "sinks/files/folder_target.py: FilesTarget.taken": "check_targets",
    "driver/fitting.py: require_fitting": "FITTING",
    "driver/fitting.py: require_nothing_written": "check_targets",
    "driver/resolve.py: resolve": "every one",
    "driver/resolve.py: _selection_changes": "check_start",
    "driver/resolve.py: ResolvedRun.refused": "check_start",
    "state/configured.py: begun_with": "check_start",
    "source/as_begun.py: LogOwner.require_again": "check_start",
    "connectors/mysql/table_probe.py: TableOptions.require_fitting": "check_start",
    "connectors/mysql/table_probe.py: _captured": "check_start",
    "source/as_begun.py: require_as_begun": "check_start",
    "connectors/mongodb/stream/raw_stream.py: require_same_set": "check_start",
    "connectors/mongodb/stream/raw_stream.py: StreamOpener.open": "check_start",
    "connectors/kafka/source.py: KafkaSource.preflight": "check_start",
}


def raised(module: str) -> set[str]:
    """``module: function`` of each named error raised in it, or, in a sink, made there to be raised by the protocol."""
    found: set[str] = set()

    def visit(node: ast.AST, inside: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                visit(child, (*inside, child.name))
                continue
            if isinstance(child, ast.Raise) and isinstance(child.exc, ast.Call):
                called = ast.unparse(child.exc.func)
                if called in ERRORS or called in ("no_order", "result.error", "refused[0].error", "_not_started"):
                    found.add(".".join(inside))
            if module.startswith("sinks/") and isinstance(child, ast.Call) and ast.unparse(child.func) in ERRORS:
                found.add(".".join(inside))
            visit(child, inside)

    visit(ast.parse((PACKAGE / module).read_text()), ())
    left = found - STARTUP[module]
    if module.startswith("sinks/"):
        left = {name for name in left if OF_SINKS.match(name)}
    return {f"{module}: {name}" for name in left}


def test_every_error_of_a_start_is_found_by_check() -> None:
    found = {place for module in STARTUP for place in raised(module)}
    only_run = sorted(found - FOUND_BY.keys())
    assert not only_run, (
        f"{only_run} end a start, and check does not know: make it a check of raycdc/driver/startup_checks.py"
    )
    assert sorted(FOUND_BY.keys() - found) == [], "no error is raised there any more"


def test_the_checks_of_the_table_are_ones_that_check_makes() -> None:
    source = "\n".join((PACKAGE / "cli" / "planning" / name).read_text() for name in ("check.py", "check_targets.py"))
    made = {check.name for check in START_CHECKS} | {"every one"}
    made |= {name for name in ("FITTING", "SELECTED", "BEGUN") if f"{name}.results(run)" in source}
    made |= {name for name in re.findall(r"^def (check_\w+)", source, re.MULTILINE) if source.count(f"{name}(") > 1}
    assert set(FOUND_BY.values()) <= made


def test_every_sink_that_remembers_says_what_it_holds_before_a_run() -> None:
    needed: dict[str, dict[str, str]] = {
        "jdbc": {"url": "jdbc:postgresql://127.0.0.1:1/x", "user": "u"},
        "mongodb": {"uri": "mongodb://127.0.0.1:1"},
        "kafka": {"bootstrap_servers": "127.0.0.1:1", "format": "debezium-json"},
        "console": {},
    }
    names = [
        plugin.type for plugin in list_plugins() if plugin.group is PluginGroup.SINKS and plugin.package == "raycdc"
    ]
    assert len(names) >= 8
    for name in names:
        document = {
            "pipeline": {"name": "n"},
            "source": {"type": "mysql", "user": "u", "tables": ["a.b"]},
            "sink": {"type": name, **needed.get(name, {"path": "x"})},
        }
        sink: Any = load_plugin(PluginGroup.SINKS, name).create(config_from_dict(document).sink)
        assert isinstance(sink, Sink), name


def test_check_and_run_begin_with_the_same_list() -> None:
    assert "for check in START_CHECKS" in (PACKAGE / "cli" / "planning" / "check.py").read_text()
    assert "for check in START_CHECKS" in (PACKAGE / "driver" / "startup_checks.py").read_text()
    pipeline = (PACKAGE / "pipeline.py").read_text()
    assert pipeline.index("begin(start)") < pipeline.index("= acquire(stack, self.config")


def test_readers_that_could_have_no_connection_for_chunks_are_not_started() -> None:
    def readers(snapshot: dict[str, int], **readers: int) -> int:
        source = {"type": "mysql", "user": "u", "tables": ["a.b"], "snapshot": snapshot}
        sink = {"type": "jsonl", "path": "x", "write": "changelog"}
        document = {"pipeline": {"name": "n"}, "source": source, "sink": sink, "readers": readers}
        return limits_of(config_from_dict(document)).bounds([SeenNode("", cpus=2, cpus_free=2, own=True)])[1]

    assert readers({}, max=6) == 6
    assert readers({}) == 2
    assert readers({}, min=3) == 3
    assert readers({"rows_per_second": 100}, max=6) == 1
    assert readers({"rows_per_second": 100}, min=4, max=6) == 1
    assert readers({"rows_per_second": 100, "connections": 3}, max=6) == 3
    assert readers({"connections": 9}, max=6) == 6
    assert readers({"rows_per_second": 100}, min=2, max=6) == 1


def test_a_segment_on_another_machine_names_the_option_that_serves_it() -> None:
    segment = Segment("there", "s.arrow", "", TableId("a", "b"), "f", "s", 0, "log", 0, 1, 1, 0)
    with pytest.raises(SegmentUnavailableError, match=r'ray\.flight = "loopback"'):
        segment_schema(segment, access=SegmentAccess("here"))


@pytest.mark.parametrize("has_sink", [True, False])
def test_a_ray_client_server_is_refused_by_its_reason_wherever_its_address_comes_from(
    monkeypatch: pytest.MonkeyPatch, has_sink: bool
) -> None:
    def refusal(address: str) -> str:
        source = {"type": "datagen", "tables": ["a.b"]}
        sink = {"type": "jsonl", "path": "x", "write": "changelog"}
        document = {"pipeline": {"name": "n"}, "source": source, "sink": sink, "ray": {"address": address}}
        config = config_from_dict(document)
        (check,) = [check for check in START_CHECKS if check.name == "ray"]
        assert check.results(Start(config, local=True, has_sink=has_sink)) == []
        (found,) = check.results(Start(config, has_sink=has_sink))
        assert found.ok == (not found.fix)
        return "" if found.ok else found.text

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert refusal("10.0.0.1:6379") == refusal("auto") == refusal("local") == ""
    assert refusal("ray://10.0.0.1:10001").startswith("ray.address: ray://10.0.0.1:10001 is a Ray Client server, which")
    monkeypatch.setenv("RAY_ADDRESS", "ray://10.0.0.2:10001")
    assert refusal("10.0.0.1:6379") == refusal("local") == ""
    assert refusal("auto").startswith('RAY_ADDRESS, by which ray.address = "auto" goes: ray://10.0.0.2:10001 is a Ray')
    monkeypatch.delenv("RAY_ADDRESS")
    connected = SimpleNamespace(ray=SimpleNamespace(is_connected=lambda: True))
    monkeypatch.setitem(sys.modules, "ray.util.client", connected)
    assert refusal("auto").startswith("This process is connected to a Ray Client server, which keeps")


def test_yarn_without_the_configuration_of_its_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    document = {
        "pipeline": {"name": "n"},
        "source": {"type": "datagen", "tables": ["a.b"]},
        "sink": {"type": "jsonl", "path": "x", "write": "changelog"},
        "spark": {"master": "yarn"},
    }
    start = Start(config_from_dict(document))
    (check,) = [check for check in START_CHECKS if check.name == "spark"]
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    refused = [found.text for found in check.results(start) if not found.ok and found.required]
    assert refused == [
        'spark.master = "yarn": neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set, and Spark finds YARN by them only.'
    ]
    monkeypatch.setenv("YARN_CONF_DIR", "/etc/hadoop")
    assert all(found.ok or not found.required for found in check.results(start))


def test_traces_without_their_packages_are_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (check,) = [check for check in START_CHECKS if check.name == "traces"]

    def results(**traces: str) -> list[Any]:
        source = {"type": "datagen", "tables": ["a.b"]}
        sink = {"type": "jsonl", "path": "x", "write": "changelog"}
        return check.results(
            Start(config_from_dict({"pipeline": {"name": "n"}, "source": source, "sink": sink, "traces": traces}))
        )

    assert results() == []
    (found,) = results(endpoint="http://127.0.0.1:4318")
    assert (found.ok, found.text) == (True, "Traces of epochs go to http://127.0.0.1:4318, which is not asked here.")
    (found,) = results(endpoint="https://127.0.0.1:4318", ca=__file__)
    assert (found.ok, found.required) == (False, False)
    monkeypatch.setattr("raycdc.driver.startup_checks.TRACES_MODULE", "opentelemetry.of_nothing")
    (found,) = results(endpoint="http://127.0.0.1:4318")
    assert (found.ok, found.required, found.error) == (False, True, ConfigError)
    assert found.text == (
        "[traces] needs a package that is not installed (opentelemetry.of_nothing). Run: pip install 'raycdc[otel]'"
    )
    # Packages of versions that do not go together.
    (tmp_path / "odd_exporter.py").write_text("raise TypeError('no descriptor')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("raycdc.driver.startup_checks.TRACES_MODULE", "odd_exporter")
    (found,) = results(endpoint="http://127.0.0.1:4318")
    assert (found.ok, found.required) == (False, False)
    assert "OpenTelemetry cannot be loaded (TypeError: no descriptor)" in found.text
