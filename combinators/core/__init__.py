"""What terms are made of: terms, the values that flow, and what it means to run a term."""
