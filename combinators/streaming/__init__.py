"""Streamed executions of a lookup: tile by tile, exactly, in memory linear in the rows."""
