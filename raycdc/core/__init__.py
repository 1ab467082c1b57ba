"""What every package stands on: clock and threads, failpoints, compiled loops, retries, activity, secrets, trusted
files.
"""
