"""Compiled loops that convert a geometry as the server stores it (SRID, then WKB) to GeoJSON as MySQL prints it.

WKB: OGC 06-103r4, "Well-known Binary Representation for Geometry"; text: RFC 7946, with the spaces and numbers of
MySQL's ``ST_AsGeoJSON``. Coordinates are kept in their stored order, longitude first. All reads are checked against the
value's end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.connectors.mysql.values.json_loops import JSON_CORRUPT, JSON_NO_ROOM
from raycdc.core.compiled import helper, load
from raycdc.core.loops.byte_loops import put_word
from raycdc.formats.loops.double_loops import DOUBLE_TEXT_MAX, double_text

_NAMES = np.frombuffer(
    b"Point\0\0\0\0\0\0\0\0\0\0\0\0\0LineString\0\0\0\0\0\0\0\0Polygon\0\0\0\0\0\0\0\0\0\0\0MultiPoint\0\0\0\0\0\0\0\0"
    b"MultiLineString\0\0\0MultiPolygon\0\0\0\0\0\0GeometryCollection",
    np.uint8,
).copy()
_NAME_BYTES = 18
_TYPE = np.frombuffer(b'{"type": "', np.uint8).copy()
_COORDINATES = np.frombuffer(b'", "coordinates": ', np.uint8).copy()
_GEOMETRIES = np.frombuffer(b'", "geometries": [', np.uint8).copy()

_POINT, _LINE, _POLYGON, _COLLECTION = 1, 2, 3, 7
_HEADER_BYTES = 5
_SRID_BYTES = 4
#: The text that may be written between two checks for room, without numbers.
_ROOM = 64


@helper
def _point(data: Any, p: Any, end: Any, out: Any, to: Any, limit: Any) -> Any:
    """Write ``[x, y]``; return (offset after it, end of the text), the latter JSON_… on failure."""
    if p + 16 > end:
        return p, JSON_CORRUPT
    if to + 2 * DOUBLE_TEXT_MAX + _ROOM > limit:
        return p, JSON_NO_ROOM
    out[to] = 91
    to = double_text(load(data, p, 64), out, to + 1)
    out[to] = 44
    out[to + 1] = 32
    to = double_text(load(data, p + 8, 64), out, to + 2)
    out[to] = 93
    return p + 16, to + 1


@helper
def _points(data: Any, p: Any, end: Any, out: Any, to: Any, limit: Any) -> Any:
    """Write a counted list of points."""
    if p + 4 > end:
        return p, JSON_CORRUPT
    count = load(data, p, 32)
    p += 4
    if to + _ROOM > limit:
        return p, JSON_NO_ROOM
    out[to] = 91
    to += 1
    for i in range(count):
        if i > 0:
            out[to] = 44
            out[to + 1] = 32
            to += 2
        p, to = _point(data, p, end, out, to, limit)
        if to < 0:
            return p, to
    out[to] = 93
    return p, to + 1


@helper
def _simple(data: Any, p: Any, end: Any, kind: Any, out: Any, to: Any, limit: Any) -> Any:
    """Write the coordinates of a point, a line or a polygon."""
    if kind == _POINT:
        return _point(data, p, end, out, to, limit)
    if kind == _LINE:
        return _points(data, p, end, out, to, limit)
    if p + 4 > end:
        return p, JSON_CORRUPT
    rings = load(data, p, 32)
    p += 4
    if to + _ROOM > limit:
        return p, JSON_NO_ROOM
    out[to] = 91
    to += 1
    for i in range(rings):
        if i > 0:
            out[to] = 44
            out[to + 1] = 32
            to += 2
        p, to = _points(data, p, end, out, to, limit)
        if to < 0:
            return p, to
        if to + _ROOM > limit:
            return p, JSON_NO_ROOM
    out[to] = 93
    return p, to + 1


@helper
def _coordinates(data: Any, p: Any, end: Any, kind: Any, out: Any, to: Any, limit: Any) -> Any:
    """Write the coordinates of any geometry except a collection.

    A multi-geometry has simple ones with separate headers.
    """
    if kind <= _POLYGON:
        return _simple(data, p, end, kind, out, to, limit)
    if p + 4 > end:
        return p, JSON_CORRUPT
    count = load(data, p, 32)
    p += 4
    out[to] = 91
    to += 1
    for i in range(count):
        if p + _HEADER_BYTES > end or data[p] != 1 or load(data, p + 1, 32) != kind - 3:
            return p, JSON_CORRUPT
        if i > 0:
            out[to] = 44
            out[to + 1] = 32
            to += 2
        p, to = _simple(data, p + _HEADER_BYTES, end, kind - 3, out, to, limit)
        if to < 0:
            return p, to
        if to + _ROOM > limit:
            return p, JSON_NO_ROOM
    out[to] = 93
    return p, to + 1


@helper
def geojson_text(data: Any, at: Any, end: Any, out: Any, to: Any, limit: Any, stack: Any) -> Any:
    """Write the geometry in ``data[at:end]`` into ``out[to:limit]``. Returns the end of the text, or JSON_….

    ``stack[depth, 0]`` counts the remaining members of a collection.
    """
    p = at + _SRID_BYTES
    depth = 0
    while True:
        if p + _HEADER_BYTES > end or data[p] != 1:
            return JSON_CORRUPT
        if to + 2 * _ROOM > limit:
            return JSON_NO_ROOM
        kind = load(data, p + 1, 32)
        p += _HEADER_BYTES
        if kind < _POINT or kind > _COLLECTION:
            return JSON_CORRUPT
        to = put_word(out, to, _TYPE)
        for i in range(_NAME_BYTES):
            letter = _NAMES[(kind - 1) * _NAME_BYTES + i]
            if letter != 0:
                out[to] = letter
                to += 1
        if kind == _COLLECTION:
            if p + 4 > end or depth == len(stack):
                return JSON_CORRUPT
            to = put_word(out, to, _GEOMETRIES)
            stack[depth, 0] = load(data, p, 32)
            depth += 1
            p += 4
            if stack[depth - 1, 0] > 0:
                continue
        else:
            to = put_word(out, to, _COORDINATES)
            p, to = _coordinates(data, p, end, kind, out, to, limit)
            if to < 0:
                return to
            if to + _ROOM > limit:
                return JSON_NO_ROOM
            out[to] = 125
            to += 1
            if depth > 0:
                stack[depth - 1, 0] -= 1
        # Close the complete arrays.
        while depth > 0 and stack[depth - 1, 0] <= 0:
            if to + _ROOM > limit:
                return JSON_NO_ROOM
            out[to] = 93
            out[to + 1] = 125
            to += 2
            depth -= 1
            if depth > 0:
                stack[depth - 1, 0] -= 1
        if depth == 0:
            return to if p == end else JSON_CORRUPT
        out[to] = 44
        out[to + 1] = 32
        to += 2
