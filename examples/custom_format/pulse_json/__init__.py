"""Pulse's change messages for raycdc."""
