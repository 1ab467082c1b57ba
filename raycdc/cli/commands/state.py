"""``raycdc state``: the state of a pipeline as a thing of its own."""

from __future__ import annotations

from raycdc.cli.commands.options import Json, NewPlace, StatePath, command_group

state = command_group(
    "Examine the state of a pipeline, copy it, and move it to another place.",
    "Examine, copy and move a pipeline's state.",
)


@state.command("check", short_help="Read the whole state, and say what is damaged.")
def state_check(config: StatePath, json: Json = False) -> int:
    """Read the whole state: what it has, what of it is damaged or gone, and the way out. Changes nothing.

    Exit code 6 says that something is not as it was written that a start would read.
    """
    from raycdc.cli.state import check_state

    return check_state(config, as_json=json)


@state.command("backup", short_help="Copy the state, beside a run or without one.")
def state_backup(config: StatePath, to: NewPlace) -> int:
    """Copy the state to TO as it is at one moment, while the pipeline runs or stands still."""
    from raycdc.cli.state import back_up_state

    return back_up_state(config, to)


@state.command("move", short_help="Take the state to another folder or store.")
def state_move(config: StatePath, to: NewPlace) -> int:
    """Take the state of a pipeline that stands still to TO. The old place is barred: nobody goes on from it."""
    from raycdc.cli.state import move_state

    return move_state(config, to)
