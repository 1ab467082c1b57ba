"""The checks before a pipeline starts, in their order. ``raycdc check`` prints all of them; a run begins with them.

A `StartCheck` checks one thing and changes nothing. A run ends at the first failed check with its text (`begin`).
`raycdc check` therefore reports everything that a run would refuse. `tests/unit/test_startup_errors.py` fails for a
refusal without a check.

| check | why here |
|---|---|
| plug-ins | a source or sink whose package is not installed cannot be checked further |
| options | conflicts with the sink or with Spark show without asking a server |
| ray | Ray must let this process join its cluster |
| java, spark | Spark itself would report the same problem only after seconds |
| state, sink folder or store | reading is pointless if the state or the sink cannot be written |
| pipeline | the state may belong to another pipeline or be damaged |
| control, metrics | another program may use their ports |
| traces | the package that sends traces may be missing |
| logging, notify | only a warning: a run goes on without its log file or a receiver |

The checks of the source, its tables, transforms, lookups and the sink's server follow (`raycdc.driver.resolve`,
`raycdc.cli`). The checks here take milliseconds together: `run --local` starts in about a second.
"""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from raycdc.config import ControlOptions, MetricsOptions, PipelineConfig
from raycdc.config.checks import CheckResult
from raycdc.delivery.record_keeper import KNOWN
from raycdc.errors import ConfigError, RaycdcError, SinkError, StateError
from raycdc.model.rules.names import misread
from raycdc.model.rules.rate_limit import Until
from raycdc.plugins import PluginGroup, load_plugin, missing_extra
from raycdc.sinks.api import UPSERT, Sink
from raycdc.state.drivers.holder import Holder
from raycdc.state.location import StateLocation, state_of
from raycdc.state.store import CheckpointStore
from raycdc.storage.api import StoreError
from raycdc.storage.url import FolderLocation, ObjectLocation, parse_location
from raycdc.transform.resolved import needs_spark

#: The maximum number of concurrent connections of the control API. The web UI, a scraper and a few commands need far
#: fewer.
CONNECTIONS_MAX = 64
#: The OpenTelemetry module that sends traces. Its package depends on all other packages that are needed.
TRACES_MODULE = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
#: Environment variables that name the folder with a Hadoop cluster's configuration.
_YARN = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
#: File systems of the kernel, where no process can create files, whatever the permissions.
_KERNELS = (Path("/proc"), Path("/sys"))

#: A person waits for the answer, so an unreachable store is reported sooner than a run would give up.
STORE_TRIES_FOR_S = 10.0


@dataclass(frozen=True)
class Start:
    """A planned start, with Ray and Spark unless `local` is True.

    `has_sink` is False if a Python caller consumes the epochs. `asked` is the end of the run, if the caller sets it
    instead of the configuration.
    """

    config: PipelineConfig
    local: bool = False
    has_sink: bool = True
    asked: Until | None = None

    @property
    def until(self) -> Until | None:
        """Return the end of the run; None if it continues until it is stopped."""
        return self.asked or self.config.until

    @cached_property
    def source(self) -> Any:
        return load_plugin(PluginGroup.SOURCES, self.config.source.type).create(self.config.source)

    @cached_property
    def sink(self) -> Sink:
        sink: Sink = load_plugin(PluginGroup.SINKS, self.config.sink.type).create(self.config.sink)
        sink.storage = self.config.storage.settings()
        return sink

    @cached_property
    def state_on_store(self) -> CheckResult | None:
        """Return the finding about a state on an object store; None for a state in a folder.

        The store is checked once, because a timeout is slow.
        """
        location = state_of(self.config)
        return _state_on_store(location) if location.on_store else None

    @cached_property
    def store(self) -> CheckpointStore | None:
        """Return the existing state, for a command that changes nothing.

        None if there is no state, or if it cannot be read; the checks of the state report the reason.
        """
        location = state_of(self.config)
        try:
            if location.open().read("meta.json") is None:
                return None
        except StateError:
            return None
        return CheckpointStore(location, create=False)

    @cached_property
    def no_merging(self) -> str:
        """Return the reason why several tables cannot be merged into one target whose rows are updated.

        Empty if they can be merged, and for targets that hold every change.
        """
        config = self.config
        if config.sink.write != UPSERT:
            return ""
        if not self.sink.merges_sources:
            return f'{config.sink.type} with write = "upsert" cannot tell whether two of them have the same key.'
        if config.source.repeats_inserts:
            return (
                f"inserts of {config.source.type} may come twice, so a key that is there already does not show where "
                'it came from. Use sink.write = "changelog".'
            )
        return ""


@dataclass(frozen=True, slots=True)
class StartCheck:
    """One check of a start. A `RaycdcError` that `inspect` raises is its finding."""

    name: str
    inspect: Callable[[Start], Iterator[CheckResult]]

    def results(self, start: Start) -> list[CheckResult]:
        """Return the findings, each with the error that would end a run."""
        found: list[CheckResult] = []
        try:
            # The findings before an error are kept.
            found.extend(self.inspect(start))
        except RaycdcError as error:
            found.append(CheckResult(self.name, str(error), error=type(error)))
        return found


def begin(start: Start) -> None:
    """Raise the first refusal of `START_CHECKS`."""
    for check in START_CHECKS:
        require(check.results(start))


def require(results: list[CheckResult]) -> None:
    """Raise the error of the first finding that is required, failed, and concerns more than one table."""
    for result in results:
        if result.required and not result.ok and not result.parks:
            raise result.error(f"{result.text} {result.fix}".strip())


def require_row_store(start: Start) -> None:
    """Raise `ConfigError` if the row store of a full changelog cannot be kept at its location."""
    known = state_of(start.config).below(KNOWN)
    if isinstance(known, FolderLocation) and (invalid := misread(known.path)):
        raise ConfigError(
            f'source.changelog = "full" keeps rows in {known}, where Delta\'s library reads {invalid!r} as something '
            "else: give this pipeline a pipeline.state without it."
        )


def no_order(sink: str) -> ConfigError:
    """Return the error for a sink that cannot use ``source.order_by``."""
    return ConfigError(
        f"source.order_by: {sink} cannot keep the row with the greatest value: changes that are all kept stay in their "
        "origin's order. Use a sink that updates rows, such as delta, or leave it out and decide with source.same_key."
    )


def order_by(config: PipelineConfig) -> str:
    """Return the column that orders the source's changes of one key. Raises `ConfigError` if the sink cannot use it."""
    column = config.source.order_column
    if column and config.sink.write != UPSERT:
        raise no_order(f'{config.sink.type} with write = "{config.sink.write}"')
    return column


def _plug_ins(start: Start) -> Iterator[CheckResult]:
    assert start.source is not None
    if start.has_sink:
        assert start.sink is not None
        for module in start.config.sink.modules:
            if sys.modules.get(module, module) is None or find_spec(module) is None:
                raise ConfigError(f"type = {start.config.sink.type!r} {missing_extra(module)}")
    yield CheckResult("plug-ins", "All that source and sink need is installed.", ok=True)


def _options(start: Start) -> Iterator[CheckResult]:
    """Check for keys that the sink, or a run with or without Spark, does not support."""
    config = start.config
    if not start.has_sink:
        return
    if order_by(config) and not start.sink.keeps_greatest:
        raise no_order(config.sink.type)
    problems = list(config.sink.problems(config.pipeline, local=start.local))
    if config.sink.write not in start.sink.writes:
        supported = " and ".join(start.sink.writes)
        problems.append(f'sink.write = "{config.sink.write}": {config.sink.type} supports {supported} only.')
    if not start.local and not config.spark.is_here and not config.flies:
        problems.append(
            f'ray.flight = "loopback": tasks of spark.master = "{config.spark.master}" could not read rows from here. '
            "Leave it out."
        )
    for index, transform in enumerate(config.transformed().all):
        location = f"transform[{index}]"
        if start.local and needs_spark(transform):
            problems.append(
                f"{location}: Spark computes its columns and filters, and --local runs without it. Run it without "
                "--local."
            )
    for problem in problems:
        yield CheckResult("options", problem, error=ConfigError)
    if not problems:
        yield CheckResult("options", f"{config.sink.type} can do what the configuration asks.", ok=True)


def _ray(start: Start) -> Iterator[CheckResult]:
    """Check that the address is no Ray Client server, also if it comes from the environment."""
    if start.local:
        return
    address, client = start.config.ray.address, sys.modules.get("ray.util.client")
    by = "ray.address"
    if address == "auto" and os.environ.get("RAY_ADDRESS"):
        # Ray itself uses this environment variable.
        by, address = 'RAY_ADDRESS, by which ray.address = "auto" goes', os.environ["RAY_ADDRESS"]
    found = ""
    if address.startswith("ray://"):
        found = f"{by}: {address} is a Ray Client server"
    elif client is not None and client.ray.is_connected():
        found = "This process is connected to a Ray Client server"
    if not found:
        yield CheckResult("ray", "Ray can run a pipeline where ray.address says.", ok=True)
        return
    text = f"{found}, which keeps this process, and the state folder with it, outside of the cluster."
    fix = 'Run raycdc on a node of the cluster, with the address of its head ("HOST:6379") or "auto".'
    yield CheckResult("ray", text, fix, error=ConfigError)


def _java(start: Start) -> Iterator[CheckResult]:
    if start.local or not start.has_sink:
        return
    from raycdc.spark.session import check_java, check_pyspark

    version = check_java()
    check_pyspark()
    yield CheckResult("java", f"Spark has its Java ({version.splitlines()[0].strip()}).", ok=True)


def _spark(start: Start) -> Iterator[CheckResult]:
    """Check what Spark needs to start, as far as that can be checked without starting it."""
    if start.local or not start.has_sink:
        return
    from raycdc.spark.session import DELTA_PACKAGE, check_settings, delta_jars

    spark = start.config.spark
    check_settings(spark.conf)
    if spark.master == "yarn" and not any(map(os.environ.get, _YARN)):
        text = f'spark.master = "yarn": neither {" nor ".join(_YARN)} is set, and Spark finds YARN by them only.'
        fix = "Set one to the folder that has the cluster's yarn-site.xml and core-site.xml."
        yield CheckResult("spark", text, fix, error=ConfigError)
        return
    if not delta_jars():
        text = f"There are no Delta jars here: {DELTA_PACKAGE} is fetched from the network when Spark starts."
        fix = "Run make setup, or set RAYCDC_JARS to a folder that has them."
        yield CheckResult("spark", text, fix, required=False)
    if not start.config.spark.is_here:
        text = f"{spark.master} is not asked here: whether it answers, and runs its tasks, is known when a run starts."
        yield CheckResult("spark", text, required=False)
    text = "Spark's master and the options of its Java are valid; Spark judges the rest of spark.conf when it starts."
    yield CheckResult("spark", text, ok=True)


def _state(start: Start) -> Iterator[CheckResult]:
    location = state_of(start.config)
    key, what = ("work_dir", "folder beside the state") if location.on_store else ("state", "state folder")
    if problem := unwritable(location.work):
        fix = f"Choose another pipeline.{key}, or let this user write there."
        yield CheckResult("state", f"The {what} {location.work} cannot be written: {problem}.", fix, error=StateError)
    elif start.state_on_store is not None:
        yield start.state_on_store
    else:
        yield CheckResult("state", f"The state folder {location.work} can be written.", ok=True)


def _state_on_store(location: StateLocation) -> CheckResult:
    try:
        location.open(tries_for_s=STORE_TRIES_FOR_S).require_usable()
    except StateError as error:
        return CheckResult("state", str(error), "Fix the problem, or choose another pipeline.state.", error=StateError)
    return CheckResult("state", f"The state in {location} can be read and written.", ok=True)


def _pipeline(start: Start) -> Iterator[CheckResult]:
    """Check to which pipeline the state belongs, if there is one."""
    options = start.config.pipeline
    location = state_of(start.config)
    if unwritable(location.work):
        return
    if start.state_on_store is not None and not start.state_on_store.ok:
        # Later checks would wait for the unreachable store again.
        yield CheckResult(
            "pipeline",
            f"The owner of the state in {location} is unknown, because the state cannot be read.",
            error=StateError,
        )
        return
    store = CheckpointStore.there(location, pipeline=options.name)
    text = "There is no state yet." if store is None else f"The state is that of pipeline {options.name}."
    yield CheckResult("pipeline", text, ok=True)


def listen(options: ControlOptions) -> socket.socket:
    """Return a socket that listens at the address of the control API. Raises `ConfigError` if that is not possible."""
    remedy = "another control.port (0 takes a free one) or control.host, or set control.enabled = false"
    return _listening("control", options.host, options.port, remedy)


def listen_for_scrapers(options: MetricsOptions) -> socket.socket:
    """Return a socket that listens at `metrics.address`. Raises `ConfigError` if that is not possible."""
    return _listening("metrics", *options.host_and_port, "another metrics.address")


def _listening(section: str, host: str, port: int, remedy: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(CONNECTIONS_MAX)
    except OSError as cause:
        listening.close()
        raise ConfigError(
            f"{section}: nothing can listen on port {port} of {host} ({cause.strerror}). Choose {remedy}."
        ) from cause
    return listening


def _control(start: Start) -> Iterator[CheckResult]:
    """Check that the control API's port is free. Only addresses of this machine can be checked."""
    options = start.config.control
    if not options.enabled or (options.is_loopback and not options.port):
        return
    if not _open_already(start):
        listen(options).close()
    yield CheckResult("control", f"The control API can listen on port {options.port} of {options.host}.", ok=True)


def _metrics(start: Start) -> Iterator[CheckResult]:
    """Check that no other program listens at the metrics address.

    If a run on this machine has the state, that run may listen at the address, so nothing is checked. A standby on the
    same machine serves no metrics until the run has freed the port.
    """
    options = start.config.metrics
    if not options.address:
        return
    if _holder_here(start) is None:
        listen_for_scrapers(options).close()
    yield CheckResult("metrics", f"Figures for Prometheus can be served at {options.address}.", ok=True)


def _traces(start: Start) -> Iterator[CheckResult]:
    """Check that the packages for sending traces are installed. The collector itself may be unreachable."""
    options = start.config.traces
    if not options.endpoint or not start.has_sink:
        return
    try:
        import_module(TRACES_MODULE)
    except ImportError as cause:
        module = cause.name or TRACES_MODULE
        raise ConfigError(f"[traces] {missing_extra(module) or missing_extra(TRACES_MODULE)}") from cause
    except ValueError as cause:
        text = f"OpenTelemetry refuses a variable of the environment ({cause}); no trace is sent, and a run goes on."
        yield CheckResult("traces", text, "Correct or unset it.", required=False)
        return
    except Exception as cause:  # noqa: BLE001 - of libraries that do not go together
        text = f"OpenTelemetry cannot be loaded ({type(cause).__name__}: {cause}); no trace is sent, and a run goes on."
        yield CheckResult("traces", text, "Run: pip install --upgrade 'raycdc[otel]'", required=False)
        return
    if problem := _no_certificates(options.ca):
        text = f"{problem}; no trace would be taken, and a run goes on."
        yield CheckResult("traces", text, "Correct traces.ca.", required=False)
    else:
        yield CheckResult("traces", f"Traces of epochs go to {options.receiver}, which is not asked here.", ok=True)


def _no_certificates(ca: str | None) -> str:
    """Return the reason why a file has no certificate authorities; empty if it has some, or if no file is named."""
    try:
        if ca is not None:
            ssl.create_default_context(cafile=ca)
    except OSError as cause:
        return f"{ca} has no certificates ({cause.strerror})"
    return ""


def _logging(start: Start) -> Iterator[CheckResult]:
    """Check that the log file can be written. A run goes on without it."""
    text = start.config.logging.file
    if not text:
        return
    path = Path(text).absolute()
    problem = f"{path} is a folder" if path.is_dir() else unwritable(path.parent)
    if not problem and not path.parent.is_dir():
        problem = f"{path.parent} is not there"
    if not problem and path.exists() and not path.is_file():
        problem = f"{path} is no file, but a pipe or a device"
    if problem:
        fix = "Correct logging.file, or let this user write there."
        yield CheckResult("logging", f"No log can be written to {path}: {problem}.", fix, required=False)
    else:
        yield CheckResult("logging", f"The log of runs can be at {path}.", ok=True)


def _notify(start: Start) -> Iterator[CheckResult]:
    """Check the receivers without sending anything. A run goes on without them."""
    for index, options in enumerate(start.config.notifications):
        location, problem, fix = f"notify[{index}]", "", ""
        if options.type == "command" and shutil.which(options.command[0]) is None:
            problem, fix = f"{options.command[0]} is no program that can be started here", "Correct notify.command."
        elif problem := _no_certificates(options.ca):
            fix = "Correct notify.ca."
        if problem:
            text = f"{location}: {problem}; notifications to it would be lost, and a run goes on."
            yield CheckResult("notify", text, fix, required=False)
        else:
            signed = "signed" if options.secret else "not signed"
            text = f"{location} tells {options.receiver}" + (f" ({signed})." if options.type == "webhook" else ".")
            yield CheckResult("notify", f"{text} raycdc notify test tries it.", ok=True)


def _open_already(start: Start) -> bool:
    """Return True if the port is taken by the control API of the run that has this state."""
    holder = _holder_here(start)
    return (
        holder is not None
        and holder.endpoint is not None
        and holder.endpoint.url.endswith(f":{start.config.control.port}")
    )


def _holder_here(start: Start) -> Holder | None:
    """Return the process that has the state, if it runs on this machine."""
    if start.state_on_store is not None and not start.state_on_store.ok:
        return None
    _, holder = (0, None) if start.store is None else start.store.generations.newest_holder()
    return None if holder is None or holder.ended or not holder.is_here else holder


def _sink_folder(start: Start) -> Iterator[CheckResult]:
    if start.has_sink and start.config.sink.store:
        yield _sink_store(start.config)
    text = start.config.sink.folder if start.has_sink else ""
    if not text:
        return
    folder = Path(text).absolute()
    if problem := unwritable(folder):
        fix = "Choose another folder, or let this user write there."
        yield CheckResult("sink folder", f"{folder} cannot be written: {problem}.", fix, error=SinkError)
    else:
        yield CheckResult("sink folder", f"{folder} can be written.", ok=True)


def _sink_store(config: PipelineConfig) -> CheckResult:
    location = parse_location(config.sink.store)
    assert isinstance(location, ObjectLocation), location
    # The import is here, because it loads the library of stores.
    from raycdc.storage.object_store import ObjectStore, probe

    try:
        settings = config.storage.settings()
        probe(ObjectStore(location, settings, tries_for_s=STORE_TRIES_FOR_S))
    except StoreError as error:
        fix = "" if "[storage]" in str(error) else "Check sink.path and [storage]."
        return CheckResult("sink store", str(error), fix, error=SinkError)
    return CheckResult("sink store", f"{location} can be written, and honours conditional writes.", ok=True)


def unwritable(folder: Path) -> str:
    """Return the reason why neither `folder` nor files in it can be created; empty if they can."""
    if any(folder.is_relative_to(kernel) for kernel in _KERNELS):
        return "it is the kernel's, which keeps no files"
    try:
        # A broken link counts as existing, because nothing can be created in its place.
        nearest = next(path for path in (folder, *folder.parents) if _is_there(path))
    except (OSError, ValueError) as cause:
        return cause.strerror or str(cause) if isinstance(cause, OSError) else str(cause)
    if nearest.is_symlink() and not nearest.exists():
        return f"{nearest} is a link that leads nowhere"
    if not nearest.is_dir():
        return f"{nearest} is a file"
    return "" if os.access(nearest, os.W_OK | os.X_OK) else f"{nearest} may not be written by this user"


def _is_there(path: Path) -> bool:
    """Return True if a file, a folder or a link (even a broken one) has this name.

    Raises `OSError` if no file can have it.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


#: The order is that of the table in the module's docstring.
START_CHECKS: tuple[StartCheck, ...] = (
    StartCheck("plug-ins", _plug_ins),
    StartCheck("options", _options),
    StartCheck("ray", _ray),
    StartCheck("java", _java),
    StartCheck("spark", _spark),
    StartCheck("state", _state),
    StartCheck("sink folder", _sink_folder),
    StartCheck("pipeline", _pipeline),
    StartCheck("control", _control),
    StartCheck("metrics", _metrics),
    StartCheck("traces", _traces),
    StartCheck("logging", _logging),
    StartCheck("notify", _notify),
)
#: If one of these checks fails, later checks make no sense.
DECISIVE = frozenset({"plug-ins", "pipeline"})
