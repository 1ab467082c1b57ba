"""The data side on Spark: session, stage jobs, typed DataFrames and the epoch loop."""
