"""The cluster: connections, checks, partitions and offsets, and its troubles."""
