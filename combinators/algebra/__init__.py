"""The algebra of programs: laws rewrite, simplify, compare and edit terms."""
