"""Producers to copy from. Each program is run by the tests and prints what its docstring says."""
