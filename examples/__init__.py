"""Provide programs to read, run and copy."""
