"""The algebra of programs: laws as data, and what is done with them."""
