"""Known bugs of Raft implementations, planted by subclassing. If one is not caught, the simulator's net has a hole.

Nothing here is reachable from the product, which has no switch for any of it.
Source: the defects named in each class, among them issues of etcd/raft, aioraft-ng 0.2.0 and PySyncObj 0.3.14.
"""

from sim.core.mutants.registry import MUTANTS, Mutant

__all__ = ["MUTANTS", "Mutant"]
