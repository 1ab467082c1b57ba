"""``raycdc init`` for topics: the file that it writes runs as it stands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer

from raycdc.cli import main
from raycdc.errors import ExitCode
from raycdc.sandbox.servers import KafkaServer

pytestmark = pytest.mark.server


def test_init_writes_what_reads_a_topic(
    kafka: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["init", "shop.toml", "--source", "kafka"]
    assert main([*words, "--answer", "bootstrap_servers=127.0.0.1:1", "--table", "orders"]) == ExitCode.SOURCE
    assert capsys.readouterr().err.endswith("Start one in another terminal:  raycdc sandbox kafka\n")
    words += ["--answer", f"bootstrap_servers={kafka.bootstrap_servers}", "--sink", "jsonl", "--sink-path", "./changes"]
    with kafka.fresh_topic() as topic:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for number in range(3):
            after = {"id": number, "item": {"name": "tea"}}
            message = {"before": None, "after": after, "source": {"db": "shop", "table": "orders"}, "op": "c"}
            producer.produce(topic, json.dumps(message).encode(), key=json.dumps({"id": number}).encode())
        producer.flush()
        assert main([*words, "--table", f"{topic}_nothing"]) == ExitCode.SOURCE
        assert f"do not show {topic}_nothing" in capsys.readouterr().err
        assert main([*words, "--table", topic]) == ExitCode.DONE
        assert capsys.readouterr().out.startswith("Wrote shop.toml.\nNext:\n  raycdc check shop.toml ")
        assert main(["run", "shop.toml", "--local", "--until", "caught-up"]) == ExitCode.DONE
    written = [line for file in Path("changes").rglob("orders/*.jsonl") for line in file.read_text().splitlines()]
    assert len(written) == 3
