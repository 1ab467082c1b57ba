"""Maxwell messages about one table of products, written to a topic in transactions of which some are aborted.

For tests of the Kafka source. `ProductFeed` knows what the table must look like afterwards: only committed transactions
count. A product's changes are all in one partition, chosen when it is born, so that partitions may be added meanwhile.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaException, Producer

from raycdc.sandbox.background import again_and_again
from raycdc.sandbox.servers import KafkaServer

#: The number of transactions per aborted one.
ABORT_EVERY = 4
COLUMNS = "id BIGINT, name STRING, description STRING, weight DOUBLE, PRIMARY KEY (id)"
_TIMEOUT_S = 300.0


class ProductFeed:
    """Writes the messages. Not thread-safe, except for `partitions`, which may grow within `running`."""

    def __init__(self, kafka: KafkaServer, topic: str, *, seed: int, partitions: int) -> None:
        self._topic = topic
        self._random = random.Random(seed)
        self.partitions = partitions
        self.rows: dict[int, dict[str, Any]] = {}
        self._partition: dict[int, int] = {}
        self._born = 0
        self._count = 0
        self.aborted = 0
        self._producer = Producer(
            {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": f"feed-{topic}-{seed}", "log_level": 0}
        )
        self._producer.init_transactions(_TIMEOUT_S)

    def transaction(self) -> None:
        """Make a few changes in a transaction, which is committed or aborted."""
        self._count += 1
        doomed = self._count % ABORT_EVERY == 0
        rows, partition, born = dict(self.rows), dict(self._partition), self._born
        self._producer.begin_transaction()
        for _ in range(self._random.randint(1, 5)):
            self._change()
        if doomed:
            # Messages that are still in the client would simply never be sent.
            self._producer.flush(_TIMEOUT_S)
        if doomed or not self._committed():
            self._end(self._producer.abort_transaction)
            self.rows, self._partition, self._born = rows, partition, born
            self.aborted += 1

    @contextmanager
    def running(self, *, pause_s: float) -> Iterator[ProductFeed]:
        """Make transactions in the background while the block runs.

        An error is raised at the end of the block, or added to the block's own error.
        """
        with again_and_again(self.transaction, pause_s=pause_s):
            yield self

    def _committed(self) -> bool:
        """End the transaction; return True if it was committed.

        If the death of a broker took messages of it, it can only be aborted.
        """
        try:
            self._end(self._producer.commit_transaction)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            return False
        return True

    @staticmethod
    def _end(end: Callable[[float], None]) -> None:
        """Retry while the broker is unreachable, because the outcome is known only after its answer."""
        while True:
            try:
                end(_TIMEOUT_S)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
            else:
                return

    def _change(self) -> None:
        choice = self._random.random()
        if choice < 0.5 or not self.rows:
            identity, self._born = self._born, self._born + 1
            self._partition[identity] = self._random.randrange(self.partitions)
            row = {"id": identity, **self._values()}
            self.rows[identity] = row
            self._send(identity, "insert", row)
            return
        identity = self._random.choice(list(self.rows))
        row = self.rows[identity]
        if choice < 0.9:
            changed = {**row, **self._values()}
            self.rows[identity] = changed
            old = {name: value for name, value in row.items() if value != changed[name]}
            self._send(identity, "update", changed, old=old)
        else:
            del self.rows[identity]
            self._send(identity, "delete", row)

    def _values(self) -> dict[str, Any]:
        texts = [None, "light", "heavy", "brand new"]
        number = self._random.randrange(20)
        return {"name": f"n{number}", "description": self._random.choice(texts), "weight": number / 4}

    def _send(self, identity: int, kind: str, row: dict[str, Any], **fields: Any) -> None:
        message = {"database": "shop", "table": "product", "type": kind, "ts": 1_700_000_000 + self._count, "data": row}
        self._producer.produce(
            self._topic,
            json.dumps({**message, **fields}).encode(),
            key=str(identity).encode(),
            partition=self._partition[identity],
        )
        self._producer.poll(0)
