"""`make setup` compiles every loop by decoding a log of its own making."""

from raycdc.connectors.mysql.warm_up import compile_all


def test_the_log_that_setup_decodes_is_one_that_the_decoder_takes() -> None:
    compile_all()
