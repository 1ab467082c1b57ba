"""A whole configuration, assembled from its sections, each of which is a module in this package.

All other packages of raycdc receive a `PipelineConfig`, which is typed, complete and immutable. `raycdc.config.load`
makes it, or Python code makes it directly from the section models.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from raycdc.config.fields import Options
from raycdc.config.sections.engines import RayOptions, ReaderOptions, SparkOptions
from raycdc.config.sections.notifications import NotifyOptions
from raycdc.config.sections.observability import ControlOptions, LoggingOptions, MetricsOptions, TracesOptions
from raycdc.config.sections.pipeline import EPOCHS_PER_HOUR, Engines, Mode, PipelineOptions
from raycdc.config.sections.source_and_sink import SinkConfig, SourceConfig
from raycdc.config.sections.storage import StorageOptions
from raycdc.config.sections.table_rules import (
    LookupOptions,
    MaskOptions,
    RouteOptions,
    TransformOptions,
    masking_problems,
)
from raycdc.errors import ConfigError
from raycdc.model import TableId
from raycdc.model.engines import FROM_BYTES
from raycdc.model.rules.mask import Masks
from raycdc.model.rules.rate_limit import Until
from raycdc.model.rules.routes import Router
from raycdc.model.rules.transform import Transforms
from raycdc.model.state_key import StateKey


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    """A whole configuration. `warnings` are shown to the user once, at the start. ``repr`` shows no secret."""

    pipeline: PipelineOptions
    source: SourceConfig
    sink: SinkConfig
    readers: ReaderOptions = field(default_factory=ReaderOptions)
    ray: RayOptions = field(default_factory=RayOptions)
    spark: SparkOptions = field(default_factory=SparkOptions)
    storage: StorageOptions = field(default_factory=StorageOptions)
    control: ControlOptions = field(default_factory=ControlOptions)
    metrics: MetricsOptions = field(default_factory=MetricsOptions)
    logging: LoggingOptions = field(default_factory=LoggingOptions)
    traces: TracesOptions = field(default_factory=TracesOptions)
    masks: tuple[MaskOptions, ...] = ()
    transforms: tuple[TransformOptions, ...] = ()
    lookups: tuple[LookupOptions, ...] = ()
    routes: tuple[RouteOptions, ...] = ()
    notifications: tuple[NotifyOptions, ...] = ()

    @property
    def flies(self) -> bool:
        """Return True if nodes serve segments to other machines."""
        if self.ray.flight == "auto":
            return self.ray.address != "local" or not self.spark.is_here
        return self.ray.flight == "network"

    warnings: tuple[str, ...] = ()
    #: The file that the configuration was read from; None if it was made in Python.
    file: Path | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Raise `ConfigError` for unsupported values, however the configuration was made."""
        problems = [] if self.state_key else masking_problems(self.masked(), self.source.chunk_keys())
        problems += repeated_problems(
            self.source, mask=self.masks, transform=self.transforms, lookup=self.lookups, route=self.routes
        )
        if problems:
            raise ConfigError(*problems)

    def router(self) -> Router:
        """Return the routes, which give the target of every table."""
        return Router([options.route() for options in self.routes], self.pipeline.route_mode)

    def masked(self) -> Masks:
        """Return the masks that readers apply."""
        return Masks([options.mask() for options in self.masks])

    @property
    def early_epochs_per_hour(self) -> int:
        """Return the number of epochs per hour that may be sealed before ``epoch_interval`` has passed.

        It is ``pipeline.epochs_per_hour`` if that is configured. Otherwise it is 0 if the interval is configured, or if
        commits become more expensive with their number; else the default.
        """
        pipeline = self.pipeline
        if pipeline.epochs_per_hour is not None:
            return pipeline.epochs_per_hour
        is_chosen = "epoch_interval" in pipeline.model_fields_set
        return 0 if is_chosen or self.sink.commits_grow(pipeline) else EPOCHS_PER_HOUR

    @property
    def is_local(self) -> bool:
        """Return True if every run is without Ray and Spark."""
        return self.pipeline.engines == "never"

    def with_engines(self, engines: Engines) -> PipelineConfig:
        """Return the configuration with another ``pipeline.engines``."""
        return replace(self, pipeline=self.pipeline.model_copy(update={"engines": engines}))

    @property
    def spark_from_bytes(self) -> int:
        """Return the size from which Spark writes an epoch; 0 if Spark writes every epoch."""
        if self.spark.from_bytes is not None:
            return self.spark.from_bytes
        return 0 if self.pipeline.engines == "always" else FROM_BYTES

    @property
    def state_key(self) -> StateKey | None:
        """Return the key that encrypts masked values which the state must remember; None if there is none."""
        key = self.pipeline.state_key
        return StateKey(key.reveal()) if key else None

    def transformed(self) -> Transforms:
        """Return the transforms of every table's rows, and the lookups that add columns to them."""
        lookups = [options.lookup(number) for number, options in enumerate(self.lookups)]
        return Transforms([options.transform() for options in self.transforms], lookups)

    @property
    def mode(self) -> Mode:
        """Return when a run ends: as ``pipeline.mode`` says, or after the snapshot of a bounded source."""
        return Mode.SNAPSHOT if self.source.bounded else self.pipeline.mode

    @property
    def until(self) -> Until | None:
        """Return the end of a run; None if the run goes on until it is stopped.

        With ``until-caught-up``, a run reads the log up to its present end, even after a bounded snapshot.
        """
        match self.pipeline.mode if self.pipeline.mode is Mode.UNTIL_CAUGHT_UP else self.mode:
            case Mode.CONTINUOUS:
                return None
            case Mode.UNTIL_CAUGHT_UP:
                return Until.CAUGHT_UP
            case Mode.SNAPSHOT:
                return Until.SNAPSHOT


#: Sections of `PipelineConfig` whose model does not depend on a plug-in.
COMMON_SECTIONS: dict[str, type[Options]] = {
    "pipeline": PipelineOptions,
    "readers": ReaderOptions,
    "ray": RayOptions,
    "spark": SparkOptions,
    "storage": StorageOptions,
    "control": ControlOptions,
    "metrics": MetricsOptions,
    "logging": LoggingOptions,
    "traces": TracesOptions,
}

#: Sections that may be repeated, and the fields of `PipelineConfig` that hold them.
REPEATED_SECTIONS: dict[str, tuple[str, type[Options]]] = {
    "mask": ("masks", MaskOptions),
    "transform": ("transforms", TransformOptions),
    "lookup": ("lookups", LookupOptions),
    "route": ("routes", RouteOptions),
    "notify": ("notifications", NotifyOptions),
}


def repeated_problems(
    source: SourceConfig,
    *,
    mask: Sequence[MaskOptions | None] = (),
    transform: Sequence[TransformOptions | None] = (),
    lookup: Sequence[LookupOptions | None] = (),
    route: Sequence[RouteOptions | None] = (),
    notify: Sequence[NotifyOptions | None] = (),
) -> Iterator[str]:
    """Yield problems of the entries of repeated sections; None stands for an invalid entry.

    An entry that names a single table which is not captured is an error. Receivers of notifications are not checked,
    because they concern no table.
    """
    del notify
    for index, redacted in enumerate(mask):
        plain = redacted.mask().plain if redacted is not None else None
        yield from _captured(source, plain[0] if plain else None, f"mask[{index}].columns")
    for index, change in enumerate(transform):
        if change is not None:
            yield from _captured(source, change.transform().plain_table, f"transform[{index}].table")
    for index, joined in enumerate(lookup):
        if joined is not None:
            yield from _captured(source, joined.plain_table, f"lookup[{index}].table")
    for index, options in enumerate(route):
        if options is not None:
            yield from _captured(source, options.route().plain, f"route[{index}].table")


def _captured(source: SourceConfig, table: TableId | None, key_path: str) -> Iterator[str]:
    if table is not None and not source.captures(table):
        yield f"{key_path}: {table} is not captured; put it into source.tables, or correct the name"
