"""A source of several logs: files whose lines grow."""
