"""Ray actors, threads and processes in which the plain classes of `raycdc.source` run."""
