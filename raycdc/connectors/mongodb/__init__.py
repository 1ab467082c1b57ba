"""MongoDB: collections read by ranges of their keys, raw BSON into Arrow columns.

**The log.** A change stream is the log: the ordinal is the cluster time, the events of one cluster time are a unit
(`stream/events.py` decides when it is complete), and the position is the last resume token. A chunk is read in a
session that is causally after the position at which it was opened, and its high watermark is the session's time after
one more read. Keys of events are compared as BSON, which is restored from their column (`StreamKeyOrder`). The table in
`stream/followed.py` has the effect of each event about a collection: every collection that appears is parked and
resnapshotted.

**Changes without documents.** An event that is too large for an answer is asked for without documents (a *lean*
answer), and the documents are then read from the collection by its UUID. A document that is not found has been deleted
since, and the stream brings the deletion before it passes the time of that read. This is checked
(`stream/document_reads.py`): such a change waits in the stream's state. If no later event settles the change, its
document is read again; if it is still not found, the change is a *missing row*. A missing row becomes the deletion of
its key, with an entry in the stream's state of that epoch (`raycdc.state.missing`), and the epoch loop treats the entry
as a bad row before the commits. The ordinal stays before waiting changes, so that no run ends before they are settled.
If megabytes of changes wait, because much was changed and then deleted, the log is read ahead once with lean answers.
*Rejected:* holding the unit back, because all events up to the deletion would be held back with it.

**The start.** Before a run, a first `getMore` finds out if the log reaches back to the position, because `on_log_lost`
acts at the start of a run, and a server opens a stream at any position. Equal numbers of different types are one key,
also as text (`bson/number_loops.py`). The server filters the stream by names and databases only, because a pattern in
the server's language might match less than the same pattern here. A snapshot without a change stream has a log of
resnapshots only (`QuietLog`), without positions, and chunks read exactly what they report.

**Chunks** are cut by `_id` in BSON's order across types (`keys.sort_key`) and read by index bounds, because comparisons
in a query match one type only. Bounds of shard keys become the nearest `_id`, which is allowed because the set of
documents that are read does not depend on where a bound lies. Shard keys without `_id` change, so all chunks are read
as of one cluster time (`keys.IndexBound`, `causal.AsOf`). Servers lose that time after minutes; the collection is then
refused (`TIME_LOST`), and never resnapshotted silently. A selection of rows and fields (`selection.py`) is only for
copies without a stream. No filter of a Spark query is pushed down to the server, because Spark 4.1 gives the plan made
for one query to other queries over the same DataFrame.

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
