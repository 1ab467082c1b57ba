"""Checks that this user may write a pipeline's topics in transactions, without creating a topic or a message.

Used by ``raycdc check``. The check initialises a transactional producer under an id of its own, so it fences no other
producer.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.cimpl import NewTopic

from raycdc.clients.kafka import admin_client, answer_of, list_topics, messages_in_the_open, producer_client
from raycdc.config.checks import CheckResult
from raycdc.errors import ConfigError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.rules.names import ROUTE_IT
from raycdc.sinks.kafka.keyed_topics import KeyedTopics, compacted_topics
from raycdc.sinks.kafka.plugin import KafkaSinkConfig
from raycdc.sinks.kafka.tasks import open_format
from raycdc.sinks.kafka.transactions import TIMEOUT_S

#: The most topics that are checked.
_TOPICS_MAX = 50
#: The operations that a topic of rows needs. Read is for the commit record, which is an offset of the topic.
_OPERATIONS = ("Write", "Read")
#: A name that collides with `__transaction_state`.
_COLLIDES = "__transaction.state"
#: A table for checking names and formats if none is known.
_ANY_TABLE = TableId("db", "table")
_ANY_SCHEMA = TableSchema((Column("id", LogicalType(TypeKind.INT64)),), ("id",))


def check_sink(config: KafkaSinkConfig, tables: Sequence[TableId], *, pipeline: str) -> list[CheckResult]:
    """Return all findings. `tables` are the targets that are known so far."""
    findings = [
        _encoding(config),
        *messages_in_the_open(config.bootstrap_servers, config.properties, section="sink"),
    ]
    properties = {"bootstrap.servers": config.bootstrap_servers, "client.id": "raycdc", **config.properties}
    admin = admin_client({**properties, "log_level": 0}, section="sink")
    try:
        there = list_topics(admin, config.bootstrap_servers, timeout_s=TIMEOUT_S).topics
    except KafkaException as cause:
        text = f"Kafka at {config.bootstrap_servers} cannot be reached: {cause.args[0].str().rstrip('.')}."
        return [*findings, CheckResult("sink", text, "Correct sink.bootstrap_servers and sink.properties.")]
    findings.append(CheckResult("sink", f"Connected to Kafka at {config.bootstrap_servers}.", ok=True))
    kept = _record(config, admin, pipeline)
    findings += [_transactions(config, properties, pipeline), kept]
    by_key = KeyedTopics(config, lambda topic: topic in there and topic in compacted_topics(admin, [topic]))
    rules = config.names
    # A table that cannot be a topic is parked, which the check of the tables reports.
    topics = {config.topic_of(table): str(table) for table in tables or [_ANY_TABLE] if not rules.no_table(table)}
    names = sorted(topics)
    findings += (colliding := _colliding(admin, topics, there, config.ddl_topic)).values()
    for name in names[:_TOPICS_MAX]:
        if name in colliding:
            continue
        if why := by_key.no_sharing(name):
            findings.append(CheckResult("sink topic", f"{why[0].upper()}{why[1:]}"))
            continue
        if name in there:
            findings.append(_writable(config, admin, name, _OPERATIONS))
        elif not kept.ok or _may_keep_records(admin, name, pipeline):
            findings.append(_creatable(config, admin, name, config.partitions, table=topics[name]))
        else:
            findings.append(_denied(config, name, "read", ("Create", "Write", "Read")))
    ddl_topic = config.ddl_topic
    if ddl_topic is not None and ddl_topic in colliding:
        return findings
    if ddl_topic is not None and ddl_topic in there:
        findings.append(_writable(config, admin, ddl_topic, ("Write",)))
    elif ddl_topic is not None:
        findings.append(_creatable(config, admin, ddl_topic, 1))
    return findings


def _colliding(
    admin: AdminClient, topics: Mapping[str, str], there: Container[str], ddl_topic: str | None
) -> dict[str, CheckResult]:
    """Return the finding about each of `topics` (name → table), and the topic of schema changes, whose name collides
    with another topic's.

    Names that differ only in '.' and '_' collide, because their metrics would have the same name (Kafka's
    `Topic.hasCollision`).
    """
    owners: dict[str, str] = {}
    names = {*topics, *({ddl_topic} if ddl_topic else ())}
    # An existing topic keeps its name. Among new topics, a run creates the first, and that of schema changes last.
    found = {
        name: owner
        for name in sorted(names, key=lambda name: (name not in there, name not in topics, name))
        if (owner := owners.setdefault(_metric(name), name)) != name and name not in there
    }
    if not found or (refuses := _refuses_collisions(admin)) is False:
        return {}
    return {
        name: CheckResult(
            "sink topic",
            f"{topics.get(name, 'sink.ddl_topic')}: topic {name} cannot be beside {owner}, from which it differs only "
            "in '.' and '_'.",
            f"{ROUTE_IT}." if name in topics else "Give it another name.",
            required=bool(refuses),
            parks=name in topics,
        )
        for name, owner in found.items()
    }


def _metric(topic: str) -> str:
    return topic.replace(".", "_")


def _refuses_collisions(admin: AdminClient) -> bool | None:
    """Return True if the brokers refuse names that differ only in '.' and '_', as Apache Kafka does; None if unknown.
    The test uses the name of a topic that exists in every cluster with transactions.
    """
    new = NewTopic(_COLLIDES, num_partitions=1)
    try:
        answer_of(admin.create_topics([new], validate_only=True)[_COLLIDES], TIMEOUT_S)
    except KafkaException as cause:
        return True if cause.args[0].code() == KafkaError.TOPIC_EXCEPTION else None
    return False


def _encoding(config: KafkaSinkConfig) -> CheckResult:
    identifier = config.format["type"]
    try:
        open_format(config.format).encoder(_ANY_TABLE, _ANY_SCHEMA)
    except ConfigError as cause:
        return CheckResult("sink format", str(cause))
    return CheckResult("sink format", f"Changes can be written as {identifier}.", ok=True)


def _transactions(config: KafkaSinkConfig, properties: dict[str, str], pipeline: str) -> CheckResult:
    """Check that the user may be a transactional producer, by initialising one without a transaction."""
    identity = f"raycdc:{pipeline}:check"
    producer = producer_client({**properties, "transactional.id": identity, "log_level": 0}, section="sink")
    try:
        producer.init_transactions(TIMEOUT_S)
    except KafkaException as cause:
        fix = _acl(
            config,
            "--operation Write --operation Describe",
            "--resource-pattern-type prefixed --transactional-id raycdc:",
        )
        return CheckResult("transactions", f"The user may not write in transactions: {cause.args[0].str()}.", fix)
    return CheckResult("transactions", "The user may write in transactions.", ok=True)


def _record(config: KafkaSinkConfig, admin: AdminClient, pipeline: str) -> CheckResult:
    """Check that the user may keep the commit record, which is an offset of a consumer group."""
    group = f"raycdc:{pipeline}:check"
    try:
        asked = admin.describe_consumer_groups([group], include_authorized_operations=True)
        allowed = answer_of(asked[group], TIMEOUT_S).authorized_operations
    except KafkaException as cause:
        allowed = [] if cause.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED else None
    if allowed is None or AclOperation.READ in allowed:
        return CheckResult("commit record", "The user may keep the commit record (offsets of a group).", ok=True)
    fix = _acl(config, "--operation Read", "--resource-pattern-type prefixed --group raycdc:")
    return CheckResult("commit record", "The user may not keep the commit record, which are offsets of a group.", fix)


def _may_keep_records(admin: AdminClient, name: str, pipeline: str) -> bool:
    """Return True if offsets of a missing topic could be committed: brokers check the Read permission first."""
    wanted = ConsumerGroupTopicPartitions(f"raycdc:{pipeline}:check", [TopicPartition(name, 0, 0)])
    (asked,) = admin.alter_consumer_group_offsets([wanted], request_timeout=TIMEOUT_S).values()
    try:
        errors = [answer.error for answer in answer_of(asked, TIMEOUT_S).topic_partitions]
    except KafkaException as cause:
        errors = [cause.args[0]]
    return all(error is None or error.code() != KafkaError.TOPIC_AUTHORIZATION_FAILED for error in errors)


def _denied(config: KafkaSinkConfig, name: str, what: str, operations: Sequence[str]) -> CheckResult:
    why = ", which its commit record needs" if what == "read" else ""
    fix = _acl(config, " ".join(f"--operation {operation}" for operation in operations), f"--topic {name}")
    return CheckResult("sink topic", f"The user may not {what} topic {name}{why}.", fix)


def _writable(config: KafkaSinkConfig, admin: AdminClient, name: str, operations: Sequence[str]) -> CheckResult:
    try:
        asked = admin.describe_topics(TopicCollection([name]), include_authorized_operations=True)
        allowed = answer_of(asked[name], TIMEOUT_S).authorized_operations
    except KafkaException as cause:
        return CheckResult("sink topic", f"Topic {name} cannot be described: {cause.args[0].str()}.")
    missing = [o for o in operations if allowed is not None and getattr(AclOperation, o.upper()) not in allowed]
    if missing:
        return _denied(config, name, missing[0].lower(), missing)
    return CheckResult("sink topic", f"Topic {name} is there and may be written.", ok=True)


def _creatable(
    config: KafkaSinkConfig, admin: AdminClient, name: str, partitions: int, *, table: str = ""
) -> CheckResult:
    """Check that the topic can be created, by a request to create it that brokers validate and do not carry out.
    `table` is the table that the topic is for; empty if the topic is for all tables.
    """
    new = NewTopic(name, num_partitions=partitions, replication_factor=config.replication_factor)
    try:
        answer_of(admin.create_topics([new], validate_only=True)[name], TIMEOUT_S)
    except KafkaException as cause:
        if cause.args[0].code() == KafkaError.TOPIC_EXCEPTION:
            text = f"{table or 'sink.ddl_topic'}: topic {name} cannot be created: {cause.args[0].str()}."
            fix = f"{ROUTE_IT}." if table else "Give it another name."
            return CheckResult("sink topic", text, fix, parks=bool(table))
        fix = (
            _acl(config, "--operation Create --operation Write --operation Read", f"--topic {name}")
            if cause.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
            else "Correct sink.partitions and sink.replication_factor, or create it beforehand."
        )
        return CheckResult(
            "sink topic", f"Topic {name} is not there and cannot be created: {cause.args[0].str()}.", fix
        )
    return CheckResult("sink topic", f"Topic {name} will be created.", ok=True)


def _acl(config: KafkaSinkConfig, operations: str, resource: str) -> str:
    """Return the command that permits the operations."""
    user = config.properties.get("sasl.username", "NAME")
    servers = config.bootstrap_servers
    return f"kafka-acls --bootstrap-server {servers} --add --allow-principal User:{user} {operations} {resource}"
