"""Known bugs of Raft implementations, made by subclassing: each must be caught, or the simulator's net has a hole.

Nothing here is reachable from the product, which has no switch for any of it.
Source: the defects named in each class; etcd/raft's issues, aioraft-ng 0.2.0 and PySyncObj 0.3.14 among them.
"""

from sim.core.mutants.registry import MUTANTS, Mutant

__all__ = ["MUTANTS", "Mutant"]
