"""Refuse fewer pods while a broker above their number belongs to the cluster.

Usage: scale_down.py REPLICAS NAME_OF_THE_NEXT_POD. The chart runs it before each upgrade, with the addresses of the pods that will remain in
RAFTMQ_BOOTSTRAP_SERVERS.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys

from raftmq import Admin
from raftmq.errors import RaftMQError

SECONDS = 60.0


async def members(bootstrap_servers: str) -> list[int]:
    """Return the ids of the cluster's brokers. Raises `RaftMQError`."""
    async with Admin(bootstrap_servers=bootstrap_servers) as admin:
        cluster = await admin.describe_cluster()
        return [broker.broker_id for broker in cluster.brokers]


def resolves(name: str) -> bool:
    """Return whether the name of a pod exists. The name of a pod that does not exist has no address."""
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return False
    return True


def refusal(replicas: int, next_pod: str, bootstrap_servers: str, seconds: float = SECONDS) -> str:
    """Return why the release must not have this number of pods. Empty if it may."""
    try:
        above = [one for one in asyncio.run(asyncio.wait_for(members(bootstrap_servers), seconds)) if one > replicas]
    except (RaftMQError, TimeoutError) as error:
        if not resolves(next_pod):
            return ""  # there are no more pods than that, so that an upgrade can repair a cluster that does not answer
        return f"{next_pod} exists, and no remaining broker says whether it is a member: {str(error) or 'no answer'}"
    if not above:
        return ""
    steps = "; ".join(f"raftmq cluster drain {one}; raftmq cluster remove {one}" for one in above)
    names = f"broker {above[0]}" if len(above) == 1 else f"brokers {', '.join(map(str, above))}"
    return f"replicas={replicas} would stop {names} of the cluster. First run: {steps}"


if __name__ == "__main__":
    sys.exit(refusal(int(sys.argv[1]), sys.argv[2], os.environ["RAFTMQ_BOOTSTRAP_SERVERS"]) or None)
