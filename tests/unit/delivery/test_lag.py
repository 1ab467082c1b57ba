"""How far the sink is behind the source, by what readers have seen and what is committed."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from raycdc.delivery.lag import Lag
from raycdc.source.protocol.job_status import JobStatus, ReaderStatus, Seals, SealStatus
from raycdc.source.protocol.metrics import LogMetrics, PartitionMetrics, ReaderMetrics


def status(seen_ms: int, *, sealed: int, committed: int, open_bytes: int = 0, sealing: bool = False) -> JobStatus:
    metrics = ReaderMetrics(LogMetrics(1, seen_ms=seen_ms))
    reader = ReaderStatus(0, 1, 10, "state", open_bytes=open_bytes, metrics=metrics)
    seal = SealStatus(sealed + 1, (0,)) if sealing else None
    return JobStatus(1, sealed, committed, readers=(reader,), seals=Seals(seal))


def test_an_idle_pipeline_is_as_far_as_its_source_was_seen() -> None:
    lag = Lag()
    assert lag.behind_ms(1000) is None
    lag.poll(status(900, sealed=3, committed=3), 1000)
    assert lag.behind_ms(1000) == 100
    # Nobody hears of the source any more: it may have changes.
    assert lag.behind_ms(5000) == 4100


def test_rows_that_were_read_count_once_their_epoch_is_committed() -> None:
    lag = Lag()
    lag.poll(status(900, sealed=3, committed=3), 1000)
    lag.poll(status(1900, sealed=3, committed=3, open_bytes=10), 2000)
    assert lag.behind_ms(2000) == 1100
    # What is seen while epoch 4 is sealed may be in the next one.
    lag.poll(status(2400, sealed=3, committed=3, sealing=True), 2500)
    lag.poll(status(2900, sealed=4, committed=3), 3000)
    lag.committed(4)
    assert lag.behind_ms(3000) == 1100
    lag.committed(5)
    assert lag.behind_ms(3000) == 100


def test_a_status_that_comes_in_the_middle_of_a_commit_waits_for_it() -> None:
    """Statuses are looked at in one thread, and epochs are committed in another."""
    lag = Lag()
    lag.poll(status(900, sealed=3, committed=3, open_bytes=10), 1000)
    looking = threading.Thread(target=lag.poll, args=(status(1900, sealed=4, committed=3, open_bytes=10), 2000))

    class Met(dict[int, int]):
        def __iter__(self) -> Iterator[int]:
            for number in super().__iter__():
                if looking.ident is None:
                    looking.start()
                    looking.join(0.2)  # Without end where it waits, as it should.
                yield number

    lag._seen = Met(lag._seen)
    lag.committed(4)
    looking.join()
    assert lag.behind_ms(1000) == 100
    lag.committed(5)
    assert lag.behind_ms(2000) == 100


def test_a_new_coordinator_reads_again_what_was_not_sealed() -> None:
    lag = Lag()
    lag.poll(status(900, sealed=3, committed=3, open_bytes=10), 1000)
    other = status(500, sealed=3, committed=3, open_bytes=10)
    lag.poll(JobStatus(2, 3, 3, readers=other.readers), 1000)
    lag.committed(4)
    assert lag.behind_ms(1000) == 500


def test_topics_are_seen_up_to_now_where_no_message_is_unread() -> None:
    def topics(pending: int) -> JobStatus:
        metrics = ReaderMetrics(partitions=PartitionMetrics(pending_records=pending, watermark_lag_ms=700))
        return JobStatus(1, 3, 3, readers=(ReaderStatus(0, 1, 10, "state", partitions=2, metrics=metrics),))

    lag = Lag()
    lag.poll(topics(5), 1000)
    assert lag.behind_ms(1000) == 700
    lag.poll(topics(0), 1500)
    assert lag.behind_ms(1500) == 0
