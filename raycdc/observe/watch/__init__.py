"""Reports about lasting conditions of a run: stalls, phases of tables, recoveries."""
