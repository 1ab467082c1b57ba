"""The Kafka source: made from its configuration in every process, it hands out that process's part."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from raycdc.checkpoint.manifest import Manifest
from raycdc.connectors.kafka.client import Cluster
from raycdc.connectors.kafka.decoding import keeps_dead_letters, open_format
from raycdc.connectors.kafka.enumerator import ANOTHER_POSITION, KafkaEnumerator
from raycdc.connectors.kafka.held import ReaderSettings
from raycdc.connectors.kafka.identities import Identities, TopicQuestions
from raycdc.connectors.kafka.offsets import in_range
from raycdc.connectors.kafka.partition_reader import Fetch, KafkaPartitionReader
from raycdc.connectors.kafka.plugin import KafkaSourceConfig
from raycdc.connectors.kafka.reader import KafkaReader
from raycdc.connectors.kafka.split import PartitionState
from raycdc.connectors.kafka.statements import ReadStatement, Statements
from raycdc.errors import SourceError
from raycdc.formats.warm_up import compile_all
from raycdc.source.api import SplitEnumeratorContext
from raycdc.source.fetcher import SplitFetcher
from raycdc.source.partitioned import ReaderContext
from raycdc.transform.hiding import Hiding


class KafkaSource:
    """See the module's docstring. Picklable: it holds the configuration, never a connection."""

    def __init__(self, config: KafkaSourceConfig) -> None:
        self._config = config
        self._left_out: frozenset[str] = frozenset()
        self._hiding = Hiding()
        self._read_statement: ReadStatement | None = None

    def leave_out(self, changes: frozenset[str]) -> None:
        """See `raycdc.source.api.LeavesOutChanges`."""
        self._left_out = changes

    def hide(self, hiding: Hiding) -> None:
        """See `raycdc.source.api.HidesValues`."""
        self._hiding = hiding

    def read_statements(self, read: ReadStatement) -> None:
        """See `raycdc.source.api.ReadsStatements`."""
        self._read_statement = read

    def __repr__(self) -> str:
        return f"KafkaSource({self._config.bootstrap_servers})"

    def warm_up(self) -> None:
        """Load the formats' compiled loops (or compile them) before there is a message to decode."""
        compile_all()

    def preflight(self, last: Manifest | None) -> None:
        """Refuse early, in the driver, what could not work after the epoch `last`, None at a first start.

        Raises `SourceError` with the fix; `LogLostError` when a topic does not have our position.
        """
        cluster = Cluster(self._config)
        topics = cluster.topics()
        missing = [name for name in self._config.topics if name not in {topic.name for topic in topics}]
        if missing:
            raise SourceError(
                f'Topic "{missing[0]}" does not exist at {self._config.bootstrap_servers}. '
                "Create it, or correct source.topics."
            )
        if last is None or self._config.on_out_of_range != "fail":
            return
        states = [PartitionState.from_json(data) for data in last.to_splits.values()]
        identities = {(topic.name, number): topic.identity for topic in topics for number in topic.partitions}
        in_range(
            cluster,
            {
                (s.topic, s.partition): s.offset
                for s in states
                if identities.get((s.topic, s.partition)) == s.identity and not s.ended()
            },
            policy="fail",
            ways_out=ANOTHER_POSITION,
        )

    def make_enumerator(
        self,
        context: SplitEnumeratorContext,
        *,
        until: str | None,
        last: Manifest | None,
        document: Callable[[str], dict[str, Any]],
    ) -> KafkaEnumerator:
        """See `raycdc.source.partitioned.PartitionedSource`."""
        enumerator = KafkaEnumerator(context, self._config, cluster=lambda: Cluster(self._config), until=until)
        if last is not None:
            enumerator.restore(last, document=document)
        return enumerator

    def make_reader(self, context: ReaderContext) -> KafkaReader:
        """See `raycdc.source.partitioned.PartitionedSource`."""
        opened = open_format(self._config.format)
        alignment = self._config.alignment
        return KafkaReader(
            context,
            partitions=FetchedPartitions(self._config, context.notify),
            make_decoder=partial(opened.decoder, positions=True),
            statements=self._statements(),
            identities=Identities(
                TopicQuestions(self._config, context.notify),
                where=self._config.bootstrap_servers,
                now_s=context.now_s,
            ),
            settings=ReaderSettings(
                idle_after_s=alignment.idle_after.total_seconds(),
                aligned=alignment.max_drift is not None,
                dead_letters=keeps_dead_letters(self._config.format),
                order_by=self._config.order_by,
                hiding=self._hiding,
            ),
        )

    def _statements(self) -> Statements:
        section = self._config.format
        tables = section.get("tables") or {}
        return Statements(
            self._read_statement,
            given=lambda table: bool(section.get("columns")) or str(table) in tables,
            left_out=self._left_out,
            follow=section.get("ddl", "follow") == "follow",
            masks=self._hiding.masks,
        )


class FetchedPartitions:
    """`raycdc.connectors.kafka.held.Partitions`: the blocking reader behind its fetcher's thread."""

    def __init__(self, config: KafkaSourceConfig, notify: Callable[[], None]) -> None:
        self._reader = KafkaPartitionReader(config)
        self._fetcher: SplitFetcher[Fetch] = SplitFetcher(
            lambda: self._reader, name="kafka-fetcher", size=lambda fetch: fetch.bytes, notify=notify
        )

    def add(
        self, topic: str, partition: int, offset: int, *, addition: int, last: tuple[int, int] | None = None
    ) -> None:
        self._reader.add(topic, partition, offset, addition=addition, last=last)

    def remove(self, split_id: str) -> None:
        self._reader.remove(split_id)

    def pause(self, split_ids: Iterable[str]) -> None:
        self._reader.pause(split_ids)

    def resume(self, split_ids: Iterable[str]) -> None:
        self._reader.resume(split_ids)

    def poll(self) -> Fetch | None:
        return self._fetcher.poll()

    def close(self) -> None:
        self._fetcher.close()
