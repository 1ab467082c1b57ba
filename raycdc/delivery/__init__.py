"""Sealed epochs, one after the other, into the sink: the part of the driver that needs neither Ray nor Spark."""
