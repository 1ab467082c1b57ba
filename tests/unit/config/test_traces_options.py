"""`[traces]`: which collectors can be named, and which headers."""

from __future__ import annotations

from typing import Any

import pytest

from raycdc.config import config_from_dict
from raycdc.errors import ConfigError


def traces(**keys: Any) -> dict[str, Any]:
    return {
        "pipeline": {"name": "n", "state": "s"},
        "source": {"type": "datagen", "tables": ["a.b"]},
        "sink": {"type": "jsonl", "path": "x"},
        "traces": keys,
    }


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("http://collector:4318/", "http://collector:4318/v1/traces"),
        ("https://host/otlp", "https://host/otlp/v1/traces"),
        ("https://host/otlp/v1/traces", "https://host/otlp/v1/traces"),
        ("http://[::1]:4318", "http://[::1]:4318/v1/traces"),
    ],
)
def test_the_path_of_traces_is_added_where_it_is_not_there(endpoint: str, url: str) -> None:
    assert config_from_dict(traces(endpoint=endpoint)).traces.url == url


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"endpoint": "collector:4317"}, "must"),
        ({"endpoint": "grpc://collector:4317"}, "gRPC is not spoken"),
        ({"endpoint": "http://:4318"}, "must be a URL"),
        ({"endpoint": "http://host:0"}, "must be a URL"),
        ({"endpoint": "http://host:x"}, "must be a URL"),
        ({"endpoint": "http://ho st"}, "must be a URL"),
        ({"endpoint": "http://me:geheim@host"}, "give a header instead"),
        ({"endpoint": "http://host/?token=geheim"}, "must end with its path"),
        ({"headers": {"a": "b"}}, "nothing is sent without endpoint"),
        ({"endpoint": "http://host", "headers": {"a": "geheim"}}, "allow_http"),
        ({"endpoint": "https://host", "headers": {"a b": "geheim"}}, "no name of a header"),
        ({"endpoint": "https://host", "headers": {"a": "gehe\nim"}}, "printable ASCII"),
        ({"endpoint": "https://host", "headers": {"Content-Type": "geheim"}}, "leave it out"),
        ({"endpoint": "https://host", "headers": {"a": 471147}}, "traces.headers.a"),
        ({"endpoint": "https://host", "sample_ratio": 1.5}, "traces.sample_ratio"),
    ],
)
def test_what_cannot_be_sent_to_is_refused_by_its_reason_and_shows_no_secret(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config_from_dict(traces(**keys))
    said = str(refused.value)
    assert why in said
    assert "gehe" not in said
    assert "471147" not in said


def test_headers_may_go_in_the_open_on_this_machine_or_where_that_is_wanted() -> None:
    for keys in ({"endpoint": "http://127.0.0.1:4318"}, {"endpoint": "http://host", "allow_http": True}):
        config = config_from_dict(traces(headers={"authorization": "geheim"}, **keys))
        assert config.traces.headers["authorization"].reveal() == "geheim"
        assert "geheim" not in repr(config)


def test_a_token_in_the_file_is_warned_of_and_a_header_for_everybody_is_not() -> None:
    headers = {"authorization": "geheim", "x-scope-orgid": "tenant", "x-api-key": "${env:KEY}"}
    config = config_from_dict(traces(endpoint="http://127.0.0.1:4318", headers=headers), environment={"KEY": "k"})
    assert config.traces.headers["x-api-key"].reveal() == "k"
    (warning,) = config.warnings
    assert warning.startswith("traces.headers.authorization is written in the configuration")
    assert "AUTHORIZATION" in warning


def test_a_header_by_a_reference_is_never_shown() -> None:
    with pytest.raises(ConfigError) as refused:
        config_from_dict(traces(endpoint="http://host", headers={"a": "${env:KEY}"}), environment={"KEY": "geheim"})
    assert "geheim" not in str(refused.value)
