"""Sends messages about a run: over HTTP (Standard Webhooks), or by a command of this machine.

| module | has |
|---|---|
| `messages` | the message and its body as types; ``raycdc docs webhook`` prints their JSON Schema |
| `event_filter` | the choice of events that are reported, and their times (pure) |
| `outbox` | the messages of one receiver: in order, with retries and a limit; remembers sent ones |
| `receivers` | the two kinds of receivers |
| `notifier` | the run's interface to all of them

|*Architecture Invariant:* a run hands over an event and continues. No receiver blocks a thread of the run, and the \
end of a run waits for `end_wait` at most.
"""
