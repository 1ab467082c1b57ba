"""Typed configuration: from TOML to one immutable `PipelineConfig`, or to an error with every problem."""

from __future__ import annotations

from raycdc.config.fields import (
    Duration,
    FilePath,
    Folder,
    FolderOrUrl,
    KeptText,
    Options,
    Secret,
    Size,
    TablePattern,
    flattened_texts,
    option,
)
from raycdc.config.load import config_from_dict, load_config
from raycdc.config.model import PipelineConfig
from raycdc.config.sections.engines import RayOptions, ReaderOptions, SparkOptions
from raycdc.config.sections.observability import ControlOptions, MetricsOptions
from raycdc.config.sections.pipeline import Mode, PipelineOptions
from raycdc.config.sections.source_and_sink import SinkConfig, SourceConfig, appends_only
from raycdc.config.sections.storage import StorageOptions
from raycdc.config.sections.table_rules import LookupOptions, MaskOptions, RouteOptions, TransformOptions

__all__ = [
    "ControlOptions",
    "Duration",
    "FilePath",
    "Folder",
    "FolderOrUrl",
    "KeptText",
    "LookupOptions",
    "MaskOptions",
    "MetricsOptions",
    "Mode",
    "Options",
    "PipelineConfig",
    "PipelineOptions",
    "RayOptions",
    "ReaderOptions",
    "RouteOptions",
    "Secret",
    "SinkConfig",
    "Size",
    "SourceConfig",
    "SparkOptions",
    "StorageOptions",
    "TablePattern",
    "TransformOptions",
    "appends_only",
    "config_from_dict",
    "flattened_texts",
    "load_config",
    "option",
]
