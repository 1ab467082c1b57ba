"""Waiting for others: how long something that is away is tried again, how often one server hears of it, and in which
words the work of a process says where it stands meanwhile.
"""
