"""Readers of targets, one per sink.

They use other libraries than the writers of the targets, and share no code with them.
"""
