"""Stepwise executions of a term: chunk by chunk, with a cache."""
