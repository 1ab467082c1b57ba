"""The built-in formats: each is a description of its envelope."""
