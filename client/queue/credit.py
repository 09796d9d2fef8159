"""Divides a client's credit among the leaders of a topic. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def split_credit(wanted: int, ready: Sequence[int]) -> list[int]:
    """Return the credit of each leader for `wanted` messages in total.

    While nothing is ready, every leader gets at least one, or a message on a leader without credit would wait although a consumer is idle. So
    the sum may exceed `wanted` by the number of leaders. The rest goes to the leaders that report waiting messages, in equal shares.

    Args:
        wanted: the messages that the client can take.
        ready: for each leader the messages that wait there beyond its credit, as it reported last.
    """
    if wanted <= 0:
        return [0] * len(ready)
    shares = [1] * len(ready)
    rest = max(0, wanted - len(ready))
    takers = [number for number, waiting in enumerate(ready) if waiting] or range(len(ready))
    for place, number in enumerate(takers):
        shares[number] += rest // len(takers) + (place < rest % len(takers))
    return shares
