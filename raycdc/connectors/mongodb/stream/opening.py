"""Change streams of the selected collections are opened only at places of the replica set that they were begun with."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from raycdc.connectors.mongodb.client import Client, ServerInfo, probe
from raycdc.connectors.mongodb.stream.causal import log_end
from raycdc.connectors.mongodb.stream.position import StreamPosition
from raycdc.connectors.mongodb.stream.raw_stream import (
    EventTooLargeError,
    RawStream,
    StreamEndedError,
    stream_options,
)
from raycdc.connectors.mongodb.stream.token import seconds_of
from raycdc.errors import LogLostError, SourceError
from raycdc.model.pace import UNLIMITED, Pace
from raycdc.model.selector import TableSelector

#: Events in an answer at most, where the source is read at a pace: nobody says how many fit in 16 MiB.
PACED_EVENTS_MAX = 50_000


class StreamOpener:
    """See the module's docstring. It uses the caller's client, blocks, and holds no stream.

    With `demands_images` changes come with the documents before and after them where a collection has these, although
    another collection may have none any more. An answer has what `pace` lets one fetch bring.
    """

    def __init__(
        self, client: Client, selector: TableSelector, *, demands_images: bool = False, pace: Pace = UNLIMITED
    ) -> None:
        self._pace = pace
        self._client = client
        self._selector = selector
        self._demands_images = demands_images

    def open(self, position: StreamPosition, *, lean: bool = False) -> RawStream:
        """Raises `LogLostError` where the server never was at `position`, or does not reach back to it."""
        client = self._client
        info = probe(client)
        require_same_set(info, position.replica_set)
        if position.token is not None and not info.is_mongos and (end := log_end(client)) < position.cluster_time:
            raise LogLostError(
                f"{info.address} is at {seconds_of(end)}, and was read to {seconds_of(position.cluster_time)} before: "
                "it was restored, or is another replica set of the same name. Take a new snapshot with "
                'pipeline.on_log_lost = "resnapshot", or point source.uri at the one that was read.'
            )
        options = replace(stream_options(client, info, self._selector), lean=lean)
        if self._pace.rows_per_s is not None:
            options = replace(options, events_max=self._pace.rows_at_once(PACED_EVENTS_MAX))
        if self._demands_images:
            # Where one collection has none any more the changes of the others are told with theirs.
            options = replace(options, images=True)
        return RawStream(client, info, options, token=position.token, after=position.cluster_time)

    def require_reached(self, position: StreamPosition) -> None:
        """Raises `LogLostError` where the log does not reach back to `position`.

        Servers say so only when they are asked for the first changes behind it.
        """
        stream = self.open(position)
        try:
            with suppress(StreamEndedError, EventTooLargeError):
                stream.next()
        finally:
            stream.close()


def require_same_set(info: ServerInfo, begun: str) -> None:
    """Raises `SourceError` for another replica set than the one that the state was begun with."""
    if begun != info.replica_set:
        raise SourceError(
            f"{info.address} belongs to the replica set {info.replica_set or 'none'!r}, and the pipeline was "
            f"begun with {begun or 'none'!r}. Point source.uri at that one, or begin with another pipeline.state."
        )
