"""The followed tables while statements of the log pass: history, shadow and temporary tables, names, refusals."""
