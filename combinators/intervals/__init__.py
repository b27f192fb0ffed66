"""Interval arithmetic: predicates on whole blocks of rows, from the bounds of their metadata."""
