"""Interval arithmetic: what a predicate says of whole blocks of rows at once."""
