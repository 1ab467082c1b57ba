"""Numbers that the BSON loops and their callers share: element types, kinds of columns, outcomes.

Element types are those of the BSON specification, version 1.1 (bsonspec.org).
"""

from __future__ import annotations

# Types of elements.
DOUBLE, STRING, DOCUMENT, ARRAY, BINARY, UNDEFINED, OBJECT_ID, BOOLEAN = 1, 2, 3, 4, 5, 6, 7, 8
DATE, NULL, REGEX, DB_POINTER, CODE, SYMBOL, CODE_WITH_SCOPE = 9, 10, 11, 12, 13, 14, 15
INT32, TIMESTAMP, INT64, DECIMAL128, MIN_KEY, MAX_KEY = 16, 17, 18, 19, 255, 127

# The kinds of text columns (`C_WIRE` of `raycdc.formats.loops.code_loops.K_TEXT`). For a column of bytes, `C_WIRE` is
# the binary subtype.
AS_STRING, AS_OBJECT_ID, AS_UUID, AS_DECIMAL128 = 0, 1, 2, 3
# The spelling of values in a JSON column (`C_WIRE` of `K_JSON`).
RELAXED, CANONICAL = 0, 1
# Added to the spelling if the column is the key: numbers that the server treats as equal get the same text.
AS_KEY = 2
# The kinds of columns of bytes that hold no binary data (subtypes 0 … 255): any value as BSON, and a document's fields.
AS_VALUE, AS_FIELDS = 256, 257

#: Binary subtypes with a special meaning: the old binary subtype has its length twice, the others are UUIDs.
OLD_BINARY, OLD_UUID, UUID = 2, 3, 4

# The outcomes of decoding a value; `FULL` and `OK` are those of `raycdc.formats.loops.code_loops`.
MISMATCH, OUT_OF_RANGE, INEXACT, BAD_UTF8, TOO_DEEP, DAMAGED, TWICE, MISSING = 60, 61, 62, 63, 64, 65, 66, 67

# The reasons why `walk_loops.decode` stops.
DONE, ROWS_FULL, TEXT_FULL, REST_FULL, FAILED = 0, 1, 2, 3, 4

#: The deepest nesting of documents and arrays; servers allow 100 (`mongod` limits, "Nested Depth for BSON Documents").
DEPTH_MAX = 200

# Indices into `Fields.state`; `FRESH` counts the rows of `Fields.fresh`, `MET` the entries of `Fields.met`.
AT, CODE_AT, ELEMENT_TYPE, FAILED_COLUMN, LOST, OPEN, FRESH, MET = range(8)
STATE_SIZE = 8

# The treatments of a value that does not fit its column.
ON_MISMATCH_FAIL, ON_MISMATCH_NULL, ON_MISMATCH_REST = 0, 1, 2

# The fields of a change event's envelope, in the order of `EVENT_FIELDS` (MongoDB manual, "Change Events").
(F_TOKEN, F_TYPE, F_TIME, F_WALL, F_NAMESPACE, F_KEY, F_AFTER, F_BEFORE, F_SPLIT, F_TXN) = range(10)
EVENT_FIELDS = (
    "_id",
    "operationType",
    "clusterTime",
    "wallTime",
    "ns",
    "documentKey",
    "fullDocument",
    "fullDocumentBeforeChange",
    "splitEvent",
    "txnNumber",
)
# The kinds of events; `OTHER` is an event that changes no document.
OTHER, INSERT, UPDATE, REPLACE, DELETE = range(5)
# The columns of an event's row: offsets in the buffer (0: the field is missing), and values that were read.
(
    E_BEGIN,
    E_END,
    E_KIND,
    E_TIME,
    E_WALL,
    E_NAMESPACE,
    E_NAMESPACE_AT,
    E_TOKEN,
    E_KEY,
    E_AFTER,
    E_BEFORE,
    E_SPLIT,
    E_TXN,
) = range(13)
EVENT_COLUMNS = 13
#: The namespace numbers of an unregistered namespace, and of an event without a namespace.
UNKNOWN_NAMESPACE, NO_NAMESPACE = -1, -2
