"""Histories of the operations and answers of clients, one JSON line per event, and the checker that judges them.

Simulated runs (in virtual time) and real runs use the same format and the same checker. `docs/internals/history-format.md` describes
the format, and `python -m sim.history FILE…` judges files.
"""
