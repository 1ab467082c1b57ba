"""The process of the coordinator: the calls that it answers, and its threads for blocking work, which do not hold
its lock.
"""
