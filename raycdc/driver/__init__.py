"""The driver of a pipeline among other processes: leadership, restarts, retries, and commands to a running pipeline."""
