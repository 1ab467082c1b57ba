"""The built-in formats. Each of them is a description of its envelope."""
