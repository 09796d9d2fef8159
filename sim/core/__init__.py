"""The core simulator: `RaftCore` replicas over a simulated network, disk and clock, without asyncio or threads.

Everything random comes from one `random.Random(seed)`, time is virtual, and ties are broken by the order of
scheduling, so a seed always replays the same history. Run it with `python -m sim.core --seed 17`.
"""
