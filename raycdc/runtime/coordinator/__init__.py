"""The process of the coordinator: its mailbox, its calls, and blocking work off its lock."""
