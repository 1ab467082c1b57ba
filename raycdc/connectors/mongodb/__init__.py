"""MongoDB: collections read by ranges of their keys, raw BSON into Arrow columns."""


def warm_up() -> None:
    """Compile the connector's loops, or find them compiled."""
    from raycdc.connectors.mongodb.warm_up import compile_all

    compile_all()
