"""Plans the chunks of a table, compares their keys, and reads each chunk as of a known position of
the log.
"""
