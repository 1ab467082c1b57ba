"""Flight beyond this machine: a server is known by the job's authority, and by the address at which it was called."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from raycdc.errors import SegmentUnavailableError, StateError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind, changelog_schema
from raycdc.runtime.spools import MADE, SpoolServer
from raycdc.segments import SegmentContents, SegmentWriter, SpoolAddress, read_segment, segment_schema, verify_segments
from raycdc.segments.access import ANYWHERE, SegmentAccess
from raycdc.segments.certificates import JobAuthority
from raycdc.state.manifests.manifest import Segment

TOKEN = "S3cret"
SCHEMA = TableSchema((Column("id", LogicalType(TypeKind.INT64)),), ("id",))
HOST = "127.0.0.1"


@contextmanager
def served(folder: Path, authority: JobAuthority, *, named: str = HOST, into: str = "spool") -> Iterator[Segment]:
    """A segment in the folder `into` beside the state, on a server whose certificate is for `named`."""
    server = SpoolServer(folder / "spool", name="state", token=TOKEN, host=HOST, identity=authority.identity(named))
    spool = SpoolAddress(folder / into, "state", server.address.flight)
    writer = SegmentWriter(
        spool, SegmentContents(TableId("shop", "t"), SCHEMA.fingerprint(), "log", "log"), name="1.arrow"
    )
    row = {"id": 1, "_op": 0, "_seq": 1, "_ts_ms": 1, "_pos": "p"}
    writer.append(pa.RecordBatch.from_pylist([row], schema=changelog_schema(SCHEMA)))
    segment = writer.finish()
    try:
        assert segment.flight.startswith("grpc+tls://")
        yield segment
    finally:
        server.close()


def rows(segment: Segment, access: SegmentAccess) -> list[int]:
    return [row for batch in read_segment(segment, ["id"], access=access) for row in batch.column(0).to_pylist()]


def elsewhere(authority: JobAuthority, token: str = TOKEN) -> SegmentAccess:
    return SegmentAccess("another node", token, authority.certificate)


@pytest.mark.parametrize("into", ["spool", *MADE])
def test_rows_cross_encrypted_from_the_spool_and_from_what_was_made_of_it(tmp_path: Path, into: str) -> None:
    authority = JobAuthority.new()
    with served(tmp_path, authority, into=into) as segment:
        assert rows(segment, elsewhere(authority)) == [1]
        assert segment_schema(segment, access=elsewhere(authority)).names[0] == "id"
        assert verify_segments([segment], access=elsewhere(authority), checksum=True)
        assert rows(segment, replace(elsewhere(authority), node=ANYWHERE)) == [1]


def test_a_server_that_another_authority_signed_is_refused_and_hears_no_token(tmp_path: Path) -> None:
    with served(tmp_path, JobAuthority.new()) as segment:
        for act in (rows, lambda one, access: segment_schema(one, access=access)):
            with pytest.raises((StateError, SegmentUnavailableError), match=r"cannot be read from grpc\+tls"):
                act(segment, elsewhere(JobAuthority.new()))
        assert not verify_segments([segment], access=elsewhere(JobAuthority.new()))


def test_a_server_at_another_address_than_it_was_signed_for_is_refused(tmp_path: Path) -> None:
    authority = JobAuthority.new()
    with (
        served(tmp_path, authority, named="10.9.8.7") as segment,
        pytest.raises(StateError, match="cannot be read from"),
    ):
        rows(segment, elsewhere(authority))


def test_nobody_reads_without_the_token_or_in_the_open(tmp_path: Path) -> None:
    authority = JobAuthority.new()
    with served(tmp_path, authority) as segment:
        with pytest.raises(StateError, match="token"):
            rows(segment, elsewhere(authority, "wrong"))
        with pytest.raises((StateError, SegmentUnavailableError)):
            rows(replace(segment, flight=segment.flight.replace("grpc+tls", "grpc")), elsewhere(authority))


def test_whoever_gets_the_authority_cannot_sign_with_it() -> None:
    authority = JobAuthority.new()
    copy = pickle.loads(pickle.dumps(authority))
    assert copy.certificate == authority.certificate
    with pytest.raises(AssertionError):
        copy.identity(HOST)
