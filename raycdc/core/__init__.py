"""Basic parts for every package: clock and threads, failpoints, compiled loops, retries, activity, secrets."""
