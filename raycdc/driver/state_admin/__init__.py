"""A state that is looked after, whether a run goes on or not: examined, copied, and moved to another place."""
