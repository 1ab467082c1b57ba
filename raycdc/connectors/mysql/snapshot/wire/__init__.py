"""Reads result sets of the binary protocol into Arrow."""
