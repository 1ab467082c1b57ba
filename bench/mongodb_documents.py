"""The documents that the benchmarks of MongoDB read, and their figures in bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from bench.measure import Measurement


def with_bytes(measurement: Measurement, size: int) -> Measurement:
    """Return the figures with the MB of `size` bytes that were read per second, and per CPU second."""
    megabytes = size / 1e6
    more = {
        "mb_per_s": round(megabytes / max(measurement.wall_s, 1e-6), 1),
        "mb_per_cpu_s": round(megabytes / max(measurement.cpu_s, 1e-6), 1),
    }
    return replace(measurement, more={**measurement.more, **more})


def documents(first: int, last: int) -> Iterator[dict[str, Any]]:
    """Return orders with ten mixed fields, about 190 bytes each."""
    for number in range(first, last):
        yield {
            "customer": number * 7919 % 100_000,
            "price": number % 10_000 / 100,
            "quantity": number * 2**33,
            "weight": number / 7,
            "name": f"product {number % 5000}",
            "note": f"für den Händler {number % 77}",
            "created": datetime(2026, 3, 1, tzinfo=UTC) + timedelta(seconds=number),
            "flag": number % 2 == 0,
            "status": "paid" if number % 3 else "open",
        }
