"""Provide producers to copy. The tests run each program and check that it prints the output in its docstring."""
