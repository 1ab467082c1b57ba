"""Targets: their commit records, the decision which of them are parked, and the part of an epoch that each of them
gets.
"""
