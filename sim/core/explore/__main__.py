"""`python -m sim.core.explore [NAME…]`: explore scenarios, by default all, and try from some of their states whether the group recovers.

The exit code is 1 if a rule was broken, or if a group did not recover.
"""

from __future__ import annotations

import argparse
import sys
import time

from sim.core.cluster import PRODUCT
from sim.core.explore.scenarios import SCENARIOS
from sim.core.explore.search import Explorer
from sim.core.mutants import MUTANTS


def main() -> int:
    """Parse arguments and explore."""
    parser = argparse.ArgumentParser(prog="python -m sim.core.explore", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *SCENARIOS], metavar="NAME", help="a scenario")
    parser.add_argument("--states", type=int, default=100_000, help="maximum number of states of a scenario (100,000)")
    parser.add_argument("--recoveries", type=int, default=200, help="number of states to recover from (200)")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), metavar="NAME", help="explore this mutant")
    arguments = parser.parse_args()
    is_clean = True
    for name in arguments.names or SCENARIOS:
        begun = time.process_time()
        explorer = Explorer(SCENARIOS[name], MUTANTS[arguments.mutant].build if arguments.mutant else PRODUCT)
        explorer.explore(arguments.states)
        states = explorer.states
        sample = range(0, 0 if explorer.error else len(states), max(1, len(states) // max(1, arguments.recoveries)))
        stuck = [at for at in sample if explorer.recover(states[at]) is None]
        seconds = time.process_time() - begun
        extent = "all" if explorer.is_complete else f"up to {len(explorer.path(len(states) - 1))} events"
        print(f"{name}: {len(states):,} states, {extent}, {len(sample)} recoveries, {seconds:.0f} s", flush=True)
        if explorer.error or stuck:
            is_clean = False
            print(
                f"  {explorer.error or 'does not recover'}", *(explorer.trace or explorer.path(stuck[0])), sep="\n    "
            )
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
