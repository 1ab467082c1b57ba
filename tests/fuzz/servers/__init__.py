"""Random SQL on real servers beside a pipeline that is killed, paused and commanded: source and target must agree.

`workload` makes the statements, `story` plays a seed, and ``python -m tests.fuzz.servers`` plays many.
"""
