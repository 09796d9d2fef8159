"""Histories: what clients did and were told, one JSON line an event, and the checker that judges them.

The same format and the same checker serve simulated runs (virtual time) and real ones. `docs/internals/history-format.md` describes the
format, `python -m sim.history FILE…` judges files.
"""
