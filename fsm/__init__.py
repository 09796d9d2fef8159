"""Pure, deterministic state machines of the metadata group and of a log partition, and the checks that proposers make
first.
"""
