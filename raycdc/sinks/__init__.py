"""Sinks: each sink is one package that implements `raycdc.sinks.api`."""
