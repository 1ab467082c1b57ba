"""Creates clients of servers that several packages use, and makes their errors useful.

A source and a sink of the same server connect in the same way, and neither imports the other.
"""
