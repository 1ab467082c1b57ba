"""What a driver does as one process among others: leadership, restarts, retries and commands to a running pipeline."""
