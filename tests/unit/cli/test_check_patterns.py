"""A regular expression whose dot stands for any character is told, wherever tables are selected by such."""

from __future__ import annotations

from typing import Any

import pytest

from raycdc.cli.planning.check import check_patterns
from raycdc.config import PipelineConfig, config_from_dict


def configured(source: dict[str, Any]) -> PipelineConfig:
    sink = {"type": "jsonl", "path": "x", "write": "changelog"}
    return config_from_dict({"pipeline": {"name": "n"}, "source": source, "sink": sink})


SOURCES: dict[str, dict[str, Any]] = {
    "mysql": {"type": "mysql", "user": "u", "tables": ["shop.order.*", "a.b", r"a\..*"], "exclude": ["shop.x.+"]},
    "mongodb": {
        "type": "mongodb",
        "uri": "mongodb://h",
        "collections": ["shop.order.*", "a.b", r"a\..*"],
        "exclude": ["shop.x.+"],
    },
    "kafka": {
        "type": "kafka",
        "bootstrap_servers": "h:1",
        "topics": ["t"],
        "format": {
            "type": "debezium-json",
            "include": ["shop.order.*", "a.b", r"a\..*"],
            "exclude": ["shop.x.+"],
        },
    },
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_bare_dot_of_every_source_is_told(source: str) -> None:
    found = check_patterns(configured(SOURCES[source]))
    assert [(result.text, result.fix, result.required) for result in found] == [
        ("The first dot of shop.order.* stands for any character.", r"Write shop\.order.*", False),
        ("The first dot of shop.x.+ stands for any character.", r"Write shop\.x.+", False),
    ]


def test_a_format_without_a_filter_has_no_pattern() -> None:
    without = {**SOURCES["kafka"], "format": "debezium-json"}
    assert check_patterns(configured(without)) == []
