"""Delivers sealed epochs to the sink, one after the other. This part of the driver needs neither Ray nor Spark."""
