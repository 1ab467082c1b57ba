"""Tells others what happens to a run: over HTTP (Standard Webhooks), or by a command of this machine.

| module | has |
|---|---|
| `messages` | the message, its body as types, of which ``raycdc docs webhook`` prints the JSON Schema |
| `news` | which events of a run are told of, and when (pure) |
| `outbox` | the messages of one receiver: in order, tried again, with an end; remembers what was sent |
| `webhook`, `command` | the two kinds of receivers |
| `notifier` | the shell that a run has |

*Architecture Invariant:* whoever runs a pipeline hands an event over and goes on. No receiver holds a thread of the
run, and the end of a run waits for `end_wait` at most.
"""
