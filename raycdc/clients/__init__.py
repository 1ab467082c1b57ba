"""Clients of servers that more than one room speaks to: their construction, and errors that a user can act on.

A source and a sink of the same server connect in the same way, and neither imports the other.
"""
