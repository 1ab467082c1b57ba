"""Result sets of the binary protocol into Arrow."""
