"""The rules behind the laws: what a law does to a line of stages, and terms to test it on."""
