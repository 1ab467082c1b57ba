"""Sends messages about a run: over HTTP (Standard Webhooks), or by a command of this machine.

| module | has |
|---|---|
| `messages` | the message and its body as types; ``raycdc docs webhook`` prints their JSON Schema |
| `event_filter` | the choice of events that are reported, and their times (pure) |
| `outbox` | the queue of messages for one receiver: in order, with retries and a limit; remembers sent messages |
| `receivers` | the two kinds of receivers |
| `notifier` | the run's interface to all of them |

*Architecture Invariant:* a run hands over an event and continues. No receiver blocks a thread of the run. The end \
of a run waits for unsent messages for at most `end_wait`.
"""
