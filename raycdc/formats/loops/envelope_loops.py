"""Finds the fields of each message's envelope, compiled: the action, the table, and the rows.

`scan` tokenizes message after message and notes for each its action, its table and the token of every field that the
envelope's description (`Names`) has. It stops at a table or a repeated text that it does not know (`STOP_…`). Python
registers the table or text, and calls `scan` again from the same message.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from raycdc.core.compiled import load
from raycdc.core.loops.compiling import helper, inlined, njit
from raycdc.formats.loops.tape_loops import (
    ABSENT,
    ARRAY,
    AT,
    BEGIN,
    END,
    ESCAPED,
    FOUND,
    INTEGER,
    KIND,
    NEXT,
    NULL,
    OBJECT,
    SPARE,
    STACK,
    STOP,
    STRING,
    TOKENS,
    TRUE,
    UNKNOWN,
    plain_text,
    same_bytes,
    tokenize,
    unescape,
)

# The actions of a message. The first three have rows.
INSERT, UPDATE, DELETE, TRUNCATE, DDL, IGNORE, TOMBSTONE, FILTERED, BAD = range(9)

# Reasons for a bad message, in addition to the damages of `tape_loops`; `bad_messages` has their texts.
NOT_AN_OBJECT, NO_TYPE, UNKNOWN_TYPE, NO_ROWS, NO_BEFORE, BAD_DOCUMENT, NO_NAME, BAD_SCHEMA = range(20, 28)
TOMBSTONE_KEY, TOMBSTONE_TABLE = 28, 29

# Fields that every envelope may have. Those of a format's own metadata follow.
TYPE, AFTER, BEFORE, DATABASE, SCHEMA, TABLE, TIME, IS_DDL, DDL_TEXT = range(9)
OWN_FIELDS = 9

# The reasons for which `scan` stopped.
STOP_END, STOP_TABLE, STOP_TEXT, STOP_TOMBSTONE = 0, 1, 2, 3

#: The number of keys of one object whose positions are remembered from message to message.
REMEMBERED_KEYS = 64

_NO_TABLE = -1

#: The field of a key that names the row's table (`raycdc.formats.options.TABLE_FIELD`).
_TABLE_FIELD = np.frombuffer(b"__dbz__physicalTableIdentifier", np.uint8).copy()


class Names(NamedTuple):
    """The envelope's description.

    Row ``e`` of `entry` describes a key of an object. It has the begin and end of the key's text in `data`, the number
    of the object that has the key (0: the outermost), the field that is the key's value (-1: none), and the number of
    the object that is the key's value (-1: none). `remembered` holds the positions of keys in the previous message.
    `kind` lists the texts of the type field: begin and end in `data`, and the action. `flags` are described below.
    """

    data: npt.NDArray[np.uint8]
    entry: npt.NDArray[np.int64]
    remembered: npt.NDArray[np.int64]
    kind: npt.NDArray[np.int64]
    flags: npt.NDArray[np.int64]


#: Columns of `Names.entry` after begin and end; the last of `Names.kind`.
GROUP, SLOT, CHILD = 2, 3, 4
MEANING = 2
#: Indices into `Names.flags`: the action if there is no type field (-1: an error), 1 if rows are documents inside
#: strings, 1 if the whole message is the row, the repeated name that distinguishes versions of a table (-1: none), and
#: the repeated name that lists the key columns (-1: none). The scan or Python change the next three: 1 if the last
#: message was a delete, the number of the table that a tombstone belongs to (or `ASK`, `NO_MEANING`, `UNCLEAR`), and 1
#: if the rows of that table are documents. Then comes 1 if a delete may lack the row before it, 1 if the update of
#: a document may lack the document after it, 1 if a message that is a row is a delete if its type field is true, and
#: the hash of the table's name in the key of the last tombstone (0: the key names no table).
(
    FLAG_DEFAULT_ACTION,
    FLAG_DOCUMENTS,
    FLAG_ROW,
    FLAG_VERSION_NAME,
    FLAG_KEY_NAME,
    FLAG_DELETED,
    FLAG_TOMBSTONE_TABLE,
    FLAG_TOMBSTONE_DOCUMENT,
    FLAG_BEFORE_OPTIONAL,
    FLAG_AFTER_OPTIONAL,
    FLAG_DELETED_ROWS,
    FLAG_KEY_TABLE,
) = range(12)
#: After these flags comes a cache of tables that keys name: a row has the hash of the name, the number of the table (or
#: `NO_MEANING`, `UNCLEAR`), and 1 if its rows are documents. The hash determines the row.
KEY_TABLES_MAX = 256
FLAGS_COUNT = FLAG_KEY_TABLE + 1 + 3 * KEY_TABLES_MAX
#: Values that replace the number of a tombstone's table: Python must determine the table, no table with a key is known,
#: or several tables are possible.
ASK, NO_MEANING, UNCLEAR = -3, -2, -1


class EnvelopeTables(NamedTuple):
    """Known tables.

    A row of `entry` has the position in `data` of database, schema and name, which follow one another; the length of
    each; the number of the version (`version_number`); Python's number for the table: `NOT_TAKEN` if it is filtered
    out, `UNREADABLE` or less if the schema text of that version cannot be read; and 1 if its rows are MongoDB's
    documents. `bucket` is a hash table of rows of `entry`. Its last element is the row of the table that was found
    last.
    """

    data: npt.NDArray[np.uint8]
    entry: npt.NDArray[np.int64]
    bucket: npt.NDArray[np.int64]


#: Columns of `EnvelopeTables.entry` after the three lengths.
VERSION, INDEX, DOCUMENTS = 4, 5, 6
NOT_TAKEN, UNREADABLE = -1, -2


class ScannedMessages(NamedTuple):
    """The messages of a chunk.

    A row of `info` has these inputs: begin and end of the message and of its key in the work buffer, `SAME_KEY` and
    `KEY_SHAPE`. All other columns are results. `found` has, for each message, the token of each field, or -1.
    """

    info: npt.NDArray[np.int64]
    found: npt.NDArray[np.int32]


#: Columns of `ScannedMessages.info` after begin and end. `MESSAGE_ROWS` is the maximum number of rows of a message.
ACTION, TABLE_NUMBER, ERROR, ERROR_AT, MESSAGE_ROWS = 2, 3, 4, 5, 6
#: The key's range in the work buffer (empty: no key); 1 if the message before has the same key; the number of the key's
#: set of field names; and, as a result, 1 if the message is a delete that has only the key of the row.
KEY_BEGIN, KEY_STOP, SAME_KEY, KEY_SHAPE, KEY_ONLY = 7, 8, 9, 10, 11
INFO_COLUMNS = 12


@inlined
def _entry(tape: Any, names: Any, group: Any, key: Any, position: Any) -> Any:
    """Return the entry of `group` for the key token, or -1. `position` is the key's number within its object."""
    at = np.int64(tape.tok[key, AT])
    length = np.int64(tape.tok[key, END]) - at
    index = group * REMEMBERED_KEYS + position
    if position < REMEMBERED_KEYS:
        guess = names.remembered[index]
        if guess >= 0 and names.entry[guess, STOP] - names.entry[guess, BEGIN] == length:
            if same_bytes(tape.data, at, names.data, names.entry[guess, BEGIN], length):
                return guess
    for entry in range(len(names.entry)):
        first = names.entry[entry, BEGIN]
        if names.entry[entry, GROUP] == group and names.entry[entry, STOP] - first == length:
            if same_bytes(tape.data, at, names.data, first, length):
                if position < REMEMBERED_KEYS:
                    names.remembered[index] = entry
                return entry
    return -1


@inlined
def _walk(tape: Any, names: Any, root: Any, found: Any, message: Any) -> Any:
    """Note the fields of the envelope that begins at the object `root`."""
    stack = tape.state  # the tokenizer does not use it any more
    stack[STACK] = root
    stack[STACK + 1] = 0
    depth = 1
    while depth > 0:
        depth -= 1
        container = stack[STACK + 2 * depth]
        group = stack[STACK + 2 * depth + 1]
        key = container + 1
        last = np.int64(tape.tok[container, NEXT])
        position = 0
        while key < last:
            value = key + 1
            entry = _entry(tape, names, group, key, position)
            if entry >= 0:
                if names.entry[entry, SLOT] >= 0:
                    found[message, names.entry[entry, SLOT]] = value
                if names.entry[entry, CHILD] >= 0 and tape.tok[value, KIND] == OBJECT and depth < 8:
                    stack[STACK + 2 * depth] = value
                    stack[STACK + 2 * depth + 1] = names.entry[entry, CHILD]
                    depth += 1
            key = np.int64(tape.tok[value, NEXT])
            position += 1


@helper
def _document(tape: Any, repeats: Any, token: Any) -> Any:
    """Return the token of the JSON document inside a string token; -1 if the string is no document."""
    start = tape.state[SPARE]
    at = np.int64(tape.tok[token, AT])
    end = np.int64(tape.tok[token, END])
    stop = unescape(tape.data, at, end, tape.data, start)
    if stop < 0:
        return -1
    tape.state[SPARE] = stop
    first = tape.state[TOKENS]
    damage, _ = tokenize(tape, repeats, start, stop, False)
    return first if damage == 0 else np.int64(-1)


@helper
def _action_of_row(tape: Any, names: Any, kind: Any) -> Any:
    """Return the action of a message that is a row: `DELETE` if its type field is true, as a text or a boolean."""
    default = np.int64(names.flags[FLAG_DEFAULT_ACTION])
    if names.flags[FLAG_DELETED_ROWS] == 0 or kind < 0 or not plain_text(tape, kind):
        return default
    if tape.tok[kind, KIND] == TRUE:
        return np.int64(DELETE)
    at = np.int64(tape.tok[kind, AT])
    true = tape.tok[kind, KIND] == STRING and tape.tok[kind, END] - at == 4 and load(tape.data, at, 32) == 0x65757274
    return np.int64(DELETE) if true else default


@inlined
def _action(tape: Any, names: Any, found: Any, message: Any) -> Any:
    """Return (action, error) of a message."""
    ddl = found[message, IS_DDL]
    if ddl >= 0 and tape.tok[ddl, KIND] == TRUE:
        return DDL, 0
    kind = found[message, TYPE]
    if names.flags[FLAG_ROW] == 1:
        return _action_of_row(tape, names, kind), 0
    if kind < 0 or tape.tok[kind, KIND] == NULL:
        if found[message, DDL_TEXT] >= 0 and kind < 0:
            return DDL, 0
        action = names.flags[FLAG_DEFAULT_ACTION]
        return (action, 0) if action >= 0 else (BAD, NO_TYPE)
    if not plain_text(tape, kind) or tape.tok[kind, KIND] != STRING:
        return BAD, UNKNOWN_TYPE
    at = np.int64(tape.tok[kind, AT])
    length = np.int64(tape.tok[kind, END]) - at
    for known in range(len(names.kind)):
        first = names.kind[known, BEGIN]
        if names.kind[known, STOP] - first == length and same_bytes(tape.data, at, names.data, first, length):
            return names.kind[known, MEANING], 0
    return BAD, UNKNOWN_TYPE


@helper
def _name_length(tape: Any, token: Any) -> Any:
    if token < 0 or not plain_text(tape, token) or tape.tok[token, KIND] != STRING:
        return np.int64(0)
    return np.int64(tape.tok[token, END] - tape.tok[token, AT])


@helper
def _is_table(
    tape: Any, tables: Any, table: Any, first: Any, second: Any, third: Any, version: Any, lengths: Any
) -> Any:
    if tables.entry[table, VERSION] != version:
        return False
    at = tables.entry[table, 0]
    if (
        tables.entry[table, 1] != lengths[0]
        or tables.entry[table, 2] != lengths[1]
        or tables.entry[table, 3] != lengths[2]
    ):
        return False
    if lengths[0] > 0 and not same_bytes(tape.data, np.int64(tape.tok[first, AT]), tables.data, at, lengths[0]):
        return False
    at += lengths[0]
    if lengths[1] > 0 and not same_bytes(tape.data, np.int64(tape.tok[second, AT]), tables.data, at, lengths[1]):
        return False
    at += lengths[1]
    return lengths[2] == 0 or same_bytes(tape.data, np.int64(tape.tok[third, AT]), tables.data, at, lengths[2])


@helper
def hash_bytes(data: Any, at: Any, length: Any, value: Any) -> Any:
    """FNV-1a, kept below 2**31."""
    for i in range(length):
        value = ((value ^ np.int64(data[at + i])) * 16777619) & 0x7FFFFFFF
    return value


@helper
def _table(tape: Any, tables: Any, found: Any, message: Any, version: Any) -> Any:
    """Return the known table of a message, or `_NO_TABLE`."""
    first = np.int64(found[message, DATABASE])
    second = np.int64(found[message, SCHEMA])
    third = np.int64(found[message, TABLE])
    lengths = (_name_length(tape, first), _name_length(tape, second), _name_length(tape, third))
    guess = tables.bucket[len(tables.bucket) - 1]
    if guess >= 0 and _is_table(tape, tables, guess, first, second, third, version, lengths):
        return guess
    value = np.int64(2166136261 & 0x7FFFFFFF)
    if lengths[0] > 0:
        value = hash_bytes(tape.data, np.int64(tape.tok[first, AT]), lengths[0], value)
    if lengths[1] > 0:
        value = hash_bytes(tape.data, np.int64(tape.tok[second, AT]), lengths[1], value)
    if lengths[2] > 0:
        value = hash_bytes(tape.data, np.int64(tape.tok[third, AT]), lengths[2], value)
    mask = len(tables.bucket) - 2
    index = (value ^ (version + 2)) & mask
    while tables.bucket[index] >= 0:
        table = tables.bucket[index]
        if _is_table(tape, tables, table, first, second, third, version, lengths):
            tables.bucket[len(tables.bucket) - 1] = table
            return table
        index = (index + 1) & mask
    return np.int64(_NO_TABLE)


@inlined
def _names_are_texts(tape: Any, found: Any, message: Any, action: Any) -> Any:
    """Return False if a value that names the message's table is no text.

    A null counts as a missing value. Only the database and the table of a message with rows must not be null.
    """
    for slot in range(DATABASE, TABLE + 1):
        token = np.int64(found[message, slot])
        if token < 0:
            continue
        if tape.tok[token, KIND] == NULL:
            if action <= TRUNCATE and slot != SCHEMA:
                return False
            found[message, slot] = -1
        elif not plain_text(tape, token) or tape.tok[token, KIND] != STRING:
            return False
    return True


@inlined
def _rows(tape: Any, repeats: Any, names: Any, messages: Any, message: Any) -> Any:
    """Check that the containers of the rows are of the right kind; return 0 or the reason.

    Tokenizes documents in strings.
    """
    for slot in range(AFTER, BEFORE + 1):
        token = np.int64(messages.found[message, slot])
        if token < 0:
            continue
        kind = tape.tok[token, KIND]
        if kind == NULL:
            messages.found[message, slot] = -1
        elif names.flags[FLAG_DOCUMENTS] == 1 and kind != OBJECT and kind != ARRAY:
            token = _document(tape, repeats, token)
            if token < 0 or tape.tok[token, KIND] != OBJECT:
                return BAD_DOCUMENT
            messages.found[message, slot] = token
        elif kind != OBJECT and kind != ARRAY:
            return NO_ROWS
    return 0


@inlined
def _rows_of(tape: Any, action: Any, after: Any) -> Any:
    """Return the maximum number of rows of a message."""
    rows = np.int64(1)
    if after >= 0 and tape.tok[after, KIND] == ARRAY:
        rows = np.int64(0)
        element = after + 1
        last = np.int64(tape.tok[after, NEXT])
        while element < last:
            rows += 1
            element = np.int64(tape.tok[element, NEXT])
    return 2 * rows if action == UPDATE else rows


@inlined
def _fail(messages: Any, message: Any, error: Any, at: Any) -> None:
    messages.info[message, ACTION] = BAD
    messages.info[message, ERROR] = error
    messages.info[message, ERROR_AT] = at


@inlined
def _found_text(repeats: Any, name: Any) -> Any:
    return repeats.name[name, FOUND] if name >= 0 else np.int64(ABSENT)


def version_number(columns: int, key_list: int, key_shape: int) -> int:
    """Return the number of a table's version.

    It combines three numbers: of the text that describes the columns, of the text that lists the key columns, and of
    the field names in the message's key.
    """
    return columns + 1024 * (key_list + 2) + (key_shape + 2) * 1048576


@inlined
def _version(names: Any, repeats: Any, messages: Any, message: Any) -> Any:
    columns = _found_text(repeats, names.flags[FLAG_VERSION_NAME])
    key_list = _found_text(repeats, names.flags[FLAG_KEY_NAME])
    return columns + 1024 * (key_list + 2) + (messages.info[message, KEY_SHAPE] + 2) * 1048576


@helper
def _key_payload(tape: Any, root: Any) -> Any:
    """Return the token of the object with the key's fields: the root, or the value of ``payload`` if the root has a
    ``schema``, too.
    """
    if tape.tok[root, KIND] != OBJECT:
        return root
    key = root + 1
    last = np.int64(tape.tok[root, NEXT])
    payload = np.int64(-1)
    schema = False
    while key < last:
        at = np.int64(tape.tok[key, AT])
        length = np.int64(tape.tok[key, END]) - at
        if length == 7 and load(tape.data, at, 32) == 0x6C796170:
            payload = np.int64(key + 1)
        elif length == 6 and load(tape.data, at, 32) == 0x65686373:
            schema = True
        key = np.int64(tape.tok[key + 1, NEXT])
    return payload if schema and payload >= 0 else root


@helper
def _document_of_key(tape: Any, repeats: Any, row: Any) -> Any:
    """Return the token of ``{"_id": …}`` for a document's key ``{"id": "…"}``, whose text is JSON; -1 for any other."""
    if tape.tok[row, NEXT] != row + 3 or tape.tok[row + 1, END] - tape.tok[row + 1, AT] != 2:
        return np.int64(-1)
    at = np.int64(tape.tok[row + 1, AT])
    text = row + 2
    if tape.data[at] != 105 or tape.data[at + 1] != 100 or tape.tok[text, KIND] not in (STRING, ESCAPED):
        return np.int64(-1)
    root = tape.state[TOKENS]
    name = tape.state[SPARE]
    tape.data[name] = 95
    tape.data[name + 1] = 105
    tape.data[name + 2] = 100
    tape.state[SPARE] = name + 3
    tape.state[TOKENS] = root + 2
    if _document(tape, repeats, text) < 0:
        return np.int64(-1)
    tape.tok[root, KIND] = OBJECT
    tape.tok[root, AT] = tape.tok[row, AT]
    tape.tok[root, END] = tape.tok[row, END]
    tape.tok[root, NEXT] = tape.state[TOKENS]
    tape.tok[root + 1, KIND] = STRING
    tape.tok[root + 1, AT] = name
    tape.tok[root + 1, END] = name + 3
    tape.tok[root + 1, NEXT] = root + 2
    return root


@helper
def _row_of_key(tape: Any, repeats: Any, messages: Any, message: Any) -> Any:
    """Return the token of a row that consists of the fields of the message's key, or -1 if the key is no object; and
    the token of the name of its table, or -1 if the key names none.

    The name must be the last field (`TABLE_FIELD`). It is no field of the row.
    """
    root = tape.state[TOKENS]
    damage, _ = tokenize(tape, repeats, messages.info[message, KEY_BEGIN], messages.info[message, KEY_STOP], False)
    if damage != 0:
        tape.state[TOKENS] = root
        return np.int64(-1), np.int64(-1)
    row = _key_payload(tape, root)
    if tape.tok[row, KIND] != OBJECT:
        return np.int64(-1), np.int64(-1)
    key = row + 1
    last = np.int64(tape.tok[row, NEXT])
    while key < last:
        at = np.int64(tape.tok[key, AT])
        following = np.int64(tape.tok[key + 1, NEXT])
        if np.int64(tape.tok[key, END]) - at == len(_TABLE_FIELD) and tape.tok[key + 1, KIND] in (STRING, ESCAPED):
            equal = following == last
            for i in range(len(_TABLE_FIELD)):
                equal = equal and tape.data[at + i] == _TABLE_FIELD[i]
            if equal:
                tape.tok[row, NEXT] = key
                return np.int64(row), np.int64(key + 1)
        key = following
    return np.int64(row), np.int64(-1)


@helper
def _table_of_key(tape: Any, names: Any, name: Any) -> Any:
    """Return the row of the cache of tables for the name at a token; -1 if the cache does not have the name."""
    at = np.int64(tape.tok[name, AT])
    length = np.int64(tape.tok[name, END]) - at
    low = np.int64(hash_bytes(tape.data, at, length, np.int64(2166136261 & 0x7FFFFFFF)))
    high = np.int64(hash_bytes(tape.data, at, length, np.int64(low ^ 0x2545F491)))
    value = ((high << 31) | low) + 1
    names.flags[FLAG_KEY_TABLE] = value
    slot = FLAG_KEY_TABLE + 1 + 3 * (low % KEY_TABLES_MAX)
    return np.int64(slot) if names.flags[slot] == value else np.int64(-1)


@helper
def _delete_by_key(messages: Any, message: Any, row: Any) -> None:
    messages.info[message, ACTION] = DELETE
    messages.info[message, KEY_ONLY] = 1
    messages.info[message, MESSAGE_ROWS] = 1
    messages.found[message, AFTER] = row
    messages.found[message, BEFORE] = row


@helper
def _delete_document(tape: Any, repeats: Any, names: Any, messages: Any, message: Any) -> None:
    """Take the row of a document's delete from the message's key, if deletes may lack the document before."""
    if names.flags[FLAG_BEFORE_OPTIONAL] == 0 or messages.info[message, KEY_STOP] <= messages.info[message, KEY_BEGIN]:
        return
    row, _ = _row_of_key(tape, repeats, messages, message)
    if row >= 0:
        row = _document_of_key(tape, repeats, row)
    if row >= 0:
        _delete_by_key(messages, message, row)


@helper
def _tombstone(tape: Any, repeats: Any, names: Any, messages: Any, message: Any) -> Any:
    """Record the meaning of a tombstone: nothing, or a delete by its key.

    Return False if Python must determine its table first.
    """
    messages.info[message, ACTION] = TOMBSTONE
    if messages.info[message, KEY_STOP] <= messages.info[message, KEY_BEGIN]:
        names.flags[FLAG_DELETED] = 0
        return True
    if messages.info[message, SAME_KEY] == 1 and names.flags[FLAG_DELETED] == 1:
        # The tombstone belongs to the delete right before it, so it deletes nothing more.
        return True
    root = tape.state[TOKENS]
    row, name = _row_of_key(tape, repeats, messages, message)
    table = names.flags[FLAG_TOMBSTONE_TABLE]
    document = names.flags[FLAG_TOMBSTONE_DOCUMENT]
    names.flags[FLAG_KEY_TABLE] = 0
    if name >= 0:
        slot = _table_of_key(tape, names, name)
        table = names.flags[slot + 1] if slot >= 0 else np.int64(ASK)
        document = names.flags[slot + 2] if slot >= 0 else np.int64(0)
    if table == ASK:
        tape.state[TOKENS] = root
        return False
    names.flags[FLAG_DELETED] = 0
    if table == UNCLEAR:
        _fail(messages, message, TOMBSTONE_TABLE, 0)
    elif table >= 0:
        messages.info[message, TABLE_NUMBER] = table
        if row >= 0 and document == 1:
            row = _document_of_key(tape, repeats, row)
        if row < 0:
            _fail(messages, message, TOMBSTONE_KEY, 0)
        else:
            names.flags[FLAG_DELETED] = 1
            _delete_by_key(messages, message, row)
    return True


# long: it stays one function because each helper would cost compile time
@njit
def scan(tape: Any, repeats: Any, names: Any, tables: Any, messages: Any, first: Any) -> Any:
    """Scan the messages from number `first` on. Returns (reason of the stop, message at which it stopped)."""
    for message in range(first, len(messages.info)):
        at = messages.info[message, BEGIN]
        end = messages.info[message, STOP]
        before = tape.state[TOKENS]
        spare = tape.state[SPARE]
        messages.info[message, ERROR] = 0
        messages.info[message, TABLE_NUMBER] = -1
        messages.info[message, MESSAGE_ROWS] = 0
        messages.info[message, KEY_ONLY] = 0
        for slot in range(messages.found.shape[1]):
            messages.found[message, slot] = -1
        for name in range(len(repeats.name)):
            repeats.name[name, FOUND] = ABSENT
        if at >= end:
            if not _tombstone(tape, repeats, names, messages, message):
                return STOP_TOMBSTONE, message
            continue
        damage, index = tokenize(tape, repeats, at, end, True)
        if damage != 0:
            tape.state[TOKENS] = before
            tape.state[SPARE] = spare
            names.flags[FLAG_DELETED] = 0
            _fail(messages, message, damage, index - at)
            continue
        for name in range(len(repeats.name)):
            if repeats.name[name, FOUND] == UNKNOWN:
                tape.state[SPARE] = spare
                tape.state[TOKENS] = before
                return STOP_TEXT, message
        if tape.tok[before, KIND] != OBJECT:
            if tape.tok[before, KIND] == NULL:
                if not _tombstone(tape, repeats, names, messages, message):
                    tape.state[TOKENS] = before
                    return STOP_TOMBSTONE, message
            else:
                names.flags[FLAG_DELETED] = 0
                _fail(messages, message, NOT_AN_OBJECT, 0)
            continue
        _walk(tape, names, before, messages.found, message)
        if names.flags[FLAG_ROW] == 1:
            messages.found[message, AFTER] = before
        action, error = _action(tape, names, messages.found, message)
        if error != 0:
            if error == NO_TYPE and messages.found[message, AFTER] < 0 and _null_payload(tape, before):
                if not _tombstone(tape, repeats, names, messages, message):
                    tape.state[SPARE] = spare
                    tape.state[TOKENS] = before
                    return STOP_TOMBSTONE, message
            else:
                names.flags[FLAG_DELETED] = 0
                _fail(messages, message, error, 0)
            continue
        names.flags[FLAG_DELETED] = 1 if action == DELETE else 0
        messages.info[message, ACTION] = action
        if action == IGNORE:
            continue
        if not _names_are_texts(tape, messages.found, message, action):
            _fail(messages, message, NO_NAME, 0)
            continue
        if action <= DELETE:
            error = _rows(tape, repeats, names, messages, message)
            if error != 0:
                _fail(messages, message, error, 0)
                continue
        table = _table(tape, tables, messages.found, message, _version(names, repeats, messages, message))
        if table == _NO_TABLE:
            tape.state[SPARE] = spare
            tape.state[TOKENS] = before
            return STOP_TABLE, message
        messages.info[message, TABLE_NUMBER] = tables.entry[table, INDEX]
        if tables.entry[table, INDEX] <= UNREADABLE:
            _fail(messages, message, BAD_SCHEMA, 0)
        elif tables.entry[table, INDEX] == NOT_TAKEN:
            messages.info[message, ACTION] = FILTERED
        elif action <= DELETE:
            messages.info[message, MESSAGE_ROWS] = _rows_of(tape, action, np.int64(messages.found[message, AFTER]))
            if action == DELETE and messages.found[message, BEFORE] < 0 and tables.entry[table, DOCUMENTS] == 1:
                _delete_document(tape, repeats, names, messages, message)
            elif (
                action == UPDATE
                and messages.found[message, AFTER] < 0
                and tables.entry[table, DOCUMENTS] == 1
                and names.flags[FLAG_AFTER_OPTIONAL] == 1
            ):
                # The document was deleted before it was looked up, and the message of its delete follows.
                messages.info[message, ACTION] = IGNORE
                messages.info[message, MESSAGE_ROWS] = 0
    return STOP_END, len(messages.info)


@helper
def _null_payload(tape: Any, root: Any) -> Any:
    """Return True if the object is ``{"schema": …, "payload": null}``: a tombstone with its envelope."""
    key = root + 1
    last = np.int64(tape.tok[root, NEXT])
    payload = False
    while key < last:
        length = tape.tok[key, END] - tape.tok[key, AT]
        if length == 7 and tape.data[tape.tok[key, AT]] == 112 and tape.tok[key + 1, KIND] == NULL:
            payload = True
        elif length != 6:
            return False
        key = np.int64(tape.tok[key + 1, NEXT])
    return payload


@helper
def integer_value(tape: Any, token: Any) -> Any:
    """Return a number token of at most 18 digits as int64: (value, True if it is one)."""
    if token < 0 or tape.tok[token, KIND] != INTEGER:
        return np.int64(0), False
    at = np.int64(tape.tok[token, AT])
    end = np.int64(tape.tok[token, END])
    negative = tape.data[at] == 45
    if negative:
        at += 1
    if end - at > 18:
        return np.int64(0), False
    value = np.int64(0)
    while at < end:
        value = value * 10 + np.int64(tape.data[at]) - 48
        at += 1
    return (-value if negative else value), True
