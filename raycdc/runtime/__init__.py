"""Shells: Ray actors, threads and processes around the plain classes of `raycdc.source`."""
