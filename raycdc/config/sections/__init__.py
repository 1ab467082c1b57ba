"""The sections of a configuration, a module for each."""
