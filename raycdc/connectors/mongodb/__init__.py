"""MongoDB: collections read by ranges of their keys, raw BSON into Arrow columns.

**The log.** A change stream is the log: the ordinal is the cluster time, the events of one cluster time are a unit
(`stream/events.py` decides when it is complete), and the position is the last resume token. A chunk is read in a
session that is causally after the position at which it was opened, and its high watermark is the session's time after
one more read. Keys of events are compared as BSON, which is restored from their column (`StreamKeyOrder`). The table in
`stream/followed.py` lists the effect of each event about a collection. Every new collection is parked and
resnapshotted.

**Changes without documents.** An event that is too large for an answer is asked for without documents (a *lean*
answer), and the documents are then read from the collection by its UUID. If a document is not found, it was deleted
after the change, and the stream brings the deletion before it passes the time of the read. To check this, such a change
waits in the stream's state (`stream/document_reads.py`). If no later event settles the change, its document is read
again. If the document is still not found, the change is a *missing row*. A missing row becomes the deletion of its key,
with an entry in the stream's state of that epoch (`raycdc.state.missing`), and the epoch loop treats the entry as a bad
row before the commits. The ordinal stays before the waiting changes, so that no run ends before the changes are
settled. If megabytes of changes wait, because much was changed and then deleted, the log is read ahead once with lean
answers. *Rejected:* holding the unit back, because all events up to the deletion would be held back with it.

**The start.** Before a run, a first `getMore` finds out if the log reaches back to the position, because `on_log_lost`
acts only at the start of a run, and a server opens a stream even at a position that its log has lost. Equal numbers of
different types are one key, also as text (`bson/number_loops.py`). The server filters the stream by names and databases
only, because a pattern in the server's language might match less than the same pattern here. A snapshot without a
change stream has a log of resnapshots only (`QuietLog`), without positions, and chunks read exactly what they report.

**Chunks** are cut by `_id` in BSON's order across types (`keys.sort_key`) and read by index bounds, because comparisons
in a query match one type only. Bounds of shard keys become the nearest `_id`, which is allowed because the set of
documents that are read does not depend on where a bound lies. A shard key without `_id` may change, so all chunks are
then read as of one cluster time (`keys.IndexBound`, `raycdc.source.snapshot.handoff.as_of`). Servers can read as of
that time for some minutes only. Afterwards the collection is refused (`TIME_LOST`), and never resnapshotted silently. A
selection of rows and fields (`selection.py`) is only for copies without a stream. No filter of a Spark query is pushed
down to the server, because Spark 4.1 uses the plan of one query for different queries over the same DataFrame.

**Layouts.** A `CollectionLayout` decides once which columns documents have, and the schema document carries it. The
loops write a value exactly or return why they cannot. Fields without a column go to `_rest`, so that inferring columns
loses nothing. The loop enters each name and type that went to `_rest` into a set, once. After a batch, Python looks at
the new entries of the set only (`stream/drift.py`), and makes a wider layout before the batch's rows; these are decoded
again, and emitted after the schema change. Inside an open transaction, the wider layout waits for the end of the
transaction.

**For a MongoDB sink** (`SourceConfig.for_sink`) the layout holds BSON: a column takes values of its own type only,
other values and nulls are in `_rest`, and NULL means a missing field. By `LogicalType.native` the sink makes the same
values again (`sinks/mongodb/documents.py`). Several rows whose keys have different types may be one key for the
server, so deletions come first, in a separate round. Replies are joined by a compiled loop
(`connectors/mongodb/stream/raw_stream.py`), because the driver's raw cursors create an object for each document.
"""


def warm_up() -> None:
    """Compile the connector's loops, or load them from the cache."""
    from raycdc.connectors.mongodb.warm_up import compile_all

    compile_all()
