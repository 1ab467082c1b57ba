"""Clients of servers that more than one room speaks to: how they are made, and errors that a user can act on.

A source and a sink of the same server connect alike, and neither is the other's affair.
"""
