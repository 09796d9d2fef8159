"""The explorer: instead of drawing an order of events from a seed, it tries every order of a few events (`python -m sim.core.explore`).

A state of a group is a tuple of small numbers: one for each replica's state, one for the set of messages under way. An event changes one
replica, and its effect depends on that replica alone. So the real core runs once for each pair of a replica's state and an event, and
the millions of combinations cost a lookup each. The search is breadth first, so it finds a shortest way to a broken rule.
"""
