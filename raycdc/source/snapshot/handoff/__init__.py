"""The hand-off from snapshot to log: drops, holds or emits each row of the log, depending on the row's chunk."""
