"""Sinks: one file each behind `raycdc.sinks.api`."""
