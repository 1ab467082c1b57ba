"""Cuts collections into chunks, and reads one chunk."""
