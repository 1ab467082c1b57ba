"""The checks of ``raycdc check`` and ``raycdc plan`` for Kafka: access to the topics, and messages in the expected
format.

They change nothing. Each finding is one `CheckResult`; an exception is raised only if the cluster does not answer.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclOperation

from raycdc.clients.kafka import admin_client, answer_of, consumer_client, messages_in_the_open
from raycdc.config.checks import CheckResult
from raycdc.connectors.kafka.cluster.client import (
    TIMEOUT_S,
    KafkaCluster,
    KafkaTopic,
    Partition,
    client_properties,
    consumer_properties,
    source_error,
)
from raycdc.connectors.kafka.cluster.discovery import OffsetRanges, in_range, new_states
from raycdc.connectors.kafka.decoding import open_format
from raycdc.connectors.kafka.plugin import KafkaSourceConfig, StartMode
from raycdc.connectors.kafka.reading.messages import gather
from raycdc.connectors.kafka.reading.partition_reader import FETCH_WAIT_S, NO_GROUP
from raycdc.connectors.kafka.split import PartitionState
from raycdc.errors import DataError, RaycdcError, SourceError
from raycdc.formats.api import BadMessage, ChangeItem, Decoded, FormatDecoder, MessageBatch, RowsItem
from raycdc.formats.json.dialect import JsonDialect, parsed
from raycdc.model import TableId, TableSchema

#: The checks sample at most this many partitions of a topic, and read this many offsets before the end of each.
SAMPLED_PARTITIONS = 8
SAMPLED_OFFSETS = 100
#: A finding names at most this many topics, tables or partitions.
_SHOWN = 8


def check_source(
    config: KafkaSourceConfig, states: Sequence[PartitionState] | None, *, now_ms: int
) -> tuple[list[CheckResult], list[TableId]]:
    """Return all findings, and the tables of the last messages.

    `states` are the pipeline's sealed states, None before its first start.

    Raises `SourceError` if the cluster does not answer.
    """
    cluster = KafkaCluster(config)
    topics = cluster.topics()
    findings = [
        CheckResult("connection", f"Connected to Kafka at {config.bootstrap_servers}.", ok=True),
        *messages_in_the_open(config.bootstrap_servers, config.properties, section="source"),
        *_topics(config, topics),
    ]
    admin = admin_client(client_properties(config), section="source")
    denied = _denied_topics(admin, [topic.name for topic in topics])
    findings += [*_permissions(config, topics, denied), *_group(admin, config)]
    readable = [topic for topic in topics if topic.name not in denied]
    if readable:
        findings.append(_start(config, cluster, readable, states, now_ms=now_ms))
    messages = {topic.name: _last_messages(config, cluster, topic) for topic in readable}
    decoded = {name: _decode(config, batches) for name, batches in messages.items()}
    compacted = cluster.compacted(messages)
    findings += [
        finding
        for name in sorted(compacted)
        for finding in unread_tombstones(config, name, messages[name], _schemas(decoded[name]))
    ]
    findings += [_format(config, name, parts) for name, parts in decoded.items()]
    return findings, sorted({table for parts in decoded.values() for table in _schemas(parts)})


def tables_of_last_messages(config: KafkaSourceConfig) -> dict[TableId, TableSchema]:
    """Return the tables in the last messages of the topics, with the columns that these messages show.

    Raises `SourceError` if a topic cannot be read, `DataError` if its messages are not in the configured format.
    """
    cluster = KafkaCluster(config)
    schemas: dict[TableId, TableSchema] = {}
    for topic in cluster.topics():
        decoded = _decode(config, _last_messages(config, cluster, topic))
        for part in decoded:
            if part.failure is not None:
                raise DataError(f"{topic.name} is not all {config.format['type']}: {part.failure}. {_OTHER_FORMAT}")
        schemas |= _schemas(decoded)
    return schemas


def _topics(config: KafkaSourceConfig, topics: Sequence[KafkaTopic]) -> list[CheckResult]:
    findings = []
    if topics:
        partitions = sum(len(topic.partitions) for topic in topics)
        names = _some([topic.name for topic in topics])
        counted = f"{_count(len(topics), 'topic')} with {_count(partitions, 'partition')}"
        findings.append(CheckResult("topics", f"{counted}: {names}.", ok=True))
    elif config.topic_pattern is not None:
        findings.append(
            CheckResult(
                "topics",
                f"The pattern {config.topic_pattern} of source.topic_pattern matches no topic yet that the user sees.",
                "Topics that match it and are created while the pipeline runs are read.",
                required=False,
            )
        )
    missing = [name for name in config.topics if name not in {topic.name for topic in topics}]
    return [*findings, *(_missing(config, name) for name in missing)]


def _missing(config: KafkaSourceConfig, name: str) -> CheckResult:
    """Return the finding for a missing listed topic: it does not exist, or the account may not see it."""
    admin = admin_client(client_properties(config), section="source")
    try:
        answer_of(admin.describe_topics(TopicCollection([name]))[name], TIMEOUT_S)
        code = None
    except KafkaException as cause:
        code = cause.args[0].code()
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        text = f"Topic {name} of source.topics is missing, or the user may not describe it."
        return CheckResult("topics", text, _acl(config, "--operation Read", f"--topic {name}"))
    return CheckResult(
        "topics",
        f"Topic {name} of source.topics does not exist at {config.bootstrap_servers}.",
        "Create it, or correct source.topics; topics that come later are found by source.topic_pattern.",
    )


def keyless_rows(config: KafkaSourceConfig, topic: str) -> str:
    """Return why the format cannot read tombstones, as a finding about a compacted topic; empty if it can."""
    opened = open_format(config.format)
    if not isinstance(opened, JsonDialect) or not opened.spec.whole_row:
        return ""
    table = opened.table_id("", "", "", topic)
    given = opened.options.schema_of(str(table))
    if given is not None and given.primary_key:
        return ""
    return (
        f"Topic {topic} is compacted (cleanup.policy), so that a row is deleted by a tombstone, which has only the "
        f"row's key; but the format gives {table} no PRIMARY KEY, and deleted rows would stay."
    )


def require_readable_tombstones(config: KafkaSourceConfig, cluster: KafkaCluster, topics: Sequence[KafkaTopic]) -> None:
    """Raise `SourceError` for a compacted topic of which no tombstone can be read, whatever messages it has."""
    keyless = {topic.name: why for topic in topics if (why := keyless_rows(config, topic.name))}
    for name in sorted(cluster.compacted(keyless) if keyless else ()):
        raise SourceError(f"{keyless[name]} {_DECLARE_KEY}")


def unread_tombstones(
    config: KafkaSourceConfig,
    topic: str,
    messages: Mapping[int, Sequence[MessageBatch]],
    schemas: Mapping[TableId, TableSchema],
) -> list[CheckResult]:
    """Return the finding about a compacted topic whose tombstones delete no row, judged by its last `messages`."""
    if why := keyless_rows(config, topic):
        return [CheckResult("compaction", why, _DECLARE_KEY)]
    keyless = sorted(str(table) for table, schema in schemas.items() if not schema.primary_key)
    if keyless:
        why = f"its messages name no key of {_some(keyless)}"
    else:
        keys = [
            key for batches in messages.values() for batch in batches if batch.keys for key in batch.keys.to_pylist()
        ]
        names = {name for schema in schemas.values() for name in schema.primary_key}
        if not schemas or any(_names_a_key(key, names) for key in keys):
            return []
        why = f"the keys of its messages are no JSON objects with the key columns ({', '.join(sorted(names))})"
    text = (
        f"Topic {topic} is compacted (cleanup.policy), so that a delete may be left as a tombstone, which has only the "
        f"row's key; but {why}, and deleted rows would stay."
    )
    return [CheckResult("compaction", text, _DECLARE_KEY)]


def _names_a_key(key: bytes | None, names: Collection[str]) -> bool:
    found = parsed(key)
    fields = found.get("payload") if "schema" in found else found
    return isinstance(fields, dict) and bool(names) and ({"_id"} == set(names) or set(fields) >= set(names))


_DECLARE_KEY = (
    "Give the table's columns with a PRIMARY KEY in source.format, and have the producer write keys as JSON objects; "
    "or read a topic that is not compacted."
)


def _acl(config: KafkaSourceConfig, operations: str, resource: str) -> str:
    """Return the command that grants the user these operations on the resource."""
    user = config.properties.get("sasl.username", "NAME")
    servers = config.bootstrap_servers
    return f"kafka-acls --bootstrap-server {servers} --add --allow-principal User:{user} {operations} {resource}"


def _denied_topics(admin: AdminClient, names: Sequence[str]) -> set[str]:
    """Return the topics that the user sees but may not read: none if the cluster reports no permissions."""
    if not names:
        return set()
    asked = admin.describe_topics(TopicCollection(list(names)), include_authorized_operations=True)
    denied = set()
    for name, future in asked.items():
        try:
            allowed = answer_of(future, TIMEOUT_S).authorized_operations
        except KafkaException as cause:
            raise source_error(cause.args[0], name) from cause
        if allowed is not None and AclOperation.READ not in allowed:
            denied.add(name)
    return denied


def _permissions(config: KafkaSourceConfig, topics: Sequence[KafkaTopic], denied: set[str]) -> list[CheckResult]:
    failed = [
        CheckResult(
            "permission", f"The user may not read topic {name}.", _acl(config, "--operation Read", f"--topic {name}")
        )
        for name in sorted(denied)
    ]
    if topics and not failed:
        return [CheckResult("permission", "The user may describe and read them.", ok=True)]
    return failed


def _group(admin: AdminClient, config: KafkaSourceConfig) -> list[CheckResult]:
    """Check that the account may use the consumer group.

    The check is required if reading begins at the group's offsets. Otherwise the group only shows the progress.
    """
    if config.group_id is None:
        return []
    needed = config.startup.mode is StartMode.GROUP_OFFSETS
    try:
        asked = admin.describe_consumer_groups([config.group_id], include_authorized_operations=True)
        allowed = answer_of(asked[config.group_id], TIMEOUT_S).authorized_operations
    except KafkaException as cause:
        allowed = [] if cause.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED else None
    if allowed is None or AclOperation.READ in allowed:
        text = f"The user may read and commit the offsets of group {config.group_id}."
        return [CheckResult("group", text, ok=True)]
    text = f"The user may not use consumer group {config.group_id}" + (
        "." if needed else ", so that the progress is not shown there."
    )
    fix = _acl(config, "--operation Read", f"--group {config.group_id}")
    return [CheckResult("group", text, fix, required=needed)]


def _start(
    config: KafkaSourceConfig,
    cluster: KafkaCluster,
    topics: Sequence[KafkaTopic],
    states: Sequence[PartitionState] | None,
    *,
    now_ms: int,
) -> CheckResult:
    there = [(topic.name, number) for topic in topics for number in topic.partitions]
    identities = {topic.name: topic.identity for topic in topics}
    for state in states or ():
        if identities.get(state.topic, state.identity) != state.identity:
            text = f"Topic {state.topic} was deleted and created again since it was read."
            return CheckResult("start", text, "Start another pipeline for the new topic.")
    try:
        if states is None:
            found = new_states(cluster, there, identities, OffsetRanges.of(config, first=True), now_ms=now_ms)
            offsets = {(s.topic, s.partition): s.offset for s in found}
        else:
            sealed = {(s.topic, s.partition): s.offset for s in states if (s.topic, s.partition) in set(there)}
            offsets = in_range(cluster, sealed, policy=config.on_out_of_range)
    except RaycdcError as error:
        return CheckResult("start", str(error))
    begins = "The pipeline begins at" if states is None else "The pipeline goes on at"
    names = _some([f"{topic}:{number}@{offset}" for (topic, number), offset in sorted(offsets.items())])
    return CheckResult("start", f"{begins} {names or 'no partition'}.", ok=True)


def _last_messages(
    config: KafkaSourceConfig, cluster: KafkaCluster, topic: KafkaTopic
) -> dict[int, list[MessageBatch]]:
    """Return the last messages of a topic's first non-empty partitions. Reads without a consumer group."""
    bounds = cluster.bounds([(topic.name, number) for number in topic.partitions])
    sampled = [p for p, (low, high) in bounds.items() if high > low][:SAMPLED_PARTITIONS]
    batches: dict[int, list[MessageBatch]] = {number: [] for _, number in sampled}
    ends = {p: cluster.latest([p])[p] for p in sampled}
    if not sampled:
        return batches
    consumer = consumer_client(consumer_properties(config), section="source")
    try:
        consumer.assign([_near_the_end(partition, *bounds[partition]) for partition in sampled])
        waiting = {p for p in sampled if ends[p] > max(bounds[p][0], bounds[p][1] - SAMPLED_OFFSETS)}
        give_up_s = time.monotonic() + TIMEOUT_S
        while waiting and time.monotonic() < give_up_s:
            messages = consumer.consume(SAMPLED_OFFSETS, timeout=FETCH_WAIT_S)
            parts, failures = gather(messages, fetched_ms=0, topic=topic.name)
            for failure in failures:
                if failure.error.code() not in NO_GROUP:
                    raise source_error(failure.error, topic.name)
            for part in parts:
                partition = int(part.split_id.rpartition(":")[2])
                if part.batch is not None:
                    batches[partition].append(part.batch)
                if part.next_offset >= ends[topic.name, partition]:
                    waiting.discard((topic.name, partition))
    except KafkaException as cause:
        raise source_error(cause.args[0], config.bootstrap_servers) from cause
    finally:
        consumer.close()
    return batches


def _near_the_end(partition: Partition, low: int, high: int) -> TopicPartition:
    return TopicPartition(*partition, max(low, high - SAMPLED_OFFSETS))


def _decode(config: KafkaSourceConfig, messages: Mapping[int, Sequence[MessageBatch]]) -> list[Decoded]:
    decoded = []
    for batches in messages.values():
        decoder: FormatDecoder = open_format(config.format).decoder()
        decoded += [decoder.decode(batch) for batch in batches]
    return decoded


def _format(config: KafkaSourceConfig, topic: str, decoded: Sequence[Decoded]) -> CheckResult:
    """Check that the format can decode a topic's last messages. Returns the tables found, or the first failure."""
    identifier = config.format["type"]
    failures = [part.failure for part in decoded if part.failure is not None]
    bad: list[BadMessage] = [message for part in decoded for message in part.bad]
    if failures:
        return CheckResult("format", f"{topic} is not all {identifier}: {failures[0]}", _OTHER_FORMAT)
    tables = _schemas(decoded)
    shown = _some([f"{table} ({_columns(schema)})" for table, schema in sorted(tables.items())], between="; ")
    if bad:
        text = f"{_count(len(bad), 'message')} of the last ones of {topic} could not be decoded, the first: "
        return CheckResult("format", f"{text}{bad[0].error}", _OTHER_FORMAT, required=not tables)
    if not decoded:
        return CheckResult("format", f"{topic} has no messages to check yet.", ok=True)
    statements = sum(isinstance(i, ChangeItem) and bool(i.statement) for part in decoded for i in part.items)
    others = {
        "statement": statements,
        "tombstone": sum(part.tombstones for part in decoded),
        "message that is no change": sum(part.ignored for part in decoded),
    }
    listed = ", ".join(_count(number, what) for what, number in others.items() if number)
    text = f"The last messages of {topic} are {identifier}: {shown or 'no rows'}{', ' if listed else ''}{listed}."
    return CheckResult("format", text, _OTHER_FORMAT, ok=bool(tables or statements), required=False)


_OTHER_FORMAT = (
    "Is source.format the format of these messages? Messages that are no changes can be left out or kept with "
    'source.format.on_error = "skip" or "dead-letter".'
)


def _schemas(decoded: Sequence[Decoded]) -> dict[TableId, TableSchema]:
    return {item.table: item.schema for part in decoded for item in part.items if isinstance(item, RowsItem)}


def _columns(schema: TableSchema) -> str:
    columns = [f"{column.name} {column.type.spark()}" for column in schema.columns]
    key = f", key {', '.join(schema.primary_key)}" if schema.primary_key else ", no key"
    return ", ".join(columns) + key


def _count(number: int, what: str) -> str:
    if number == 1:
        return f"1 {what}"
    return f"{number} {what.replace('message that is', 'messages that are') if ' ' in what else what + 's'}"


def _some(names: Sequence[str], *, between: str = ", ") -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return between.join(names[:_SHOWN]) + more
