"""Check the clock shim: it shifts the wall clock of a Python process on request, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.clock_shim import ClockOrders
from tests.chaos.machine import missing_for_shim

READER = """
import datetime, json, sys, threading, time
for line in sys.stdin:
    began = time.monotonic()
    threading.Event().wait(0.05)
    lock = threading.Lock()
    lock.acquire()
    lock.acquire(timeout=0.05)
    waited = time.monotonic() - began
    now = datetime.datetime.now(datetime.UTC).timestamp()
    print(json.dumps([time.time(), time.time_ns() / 1e9, now, time.monotonic(), waited]), flush=True)
"""
DAY = 86_400.0


class Reader:
    """A process that reports its clocks."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", READER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | environment,
            text=True,
        )

    def times(self) -> tuple[list[float], float, float]:
        """Return the wall clock read in three ways, the monotonic clock, and the duration of two waits of 50 ms."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        *walls, monotonic, waited = json.loads(self._process.stdout.readline())
        return walls, monotonic, waited

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[ClockOrders]:
    if missing := missing_for_shim():
        pytest.skip(f"{missing}; the simulator has clocks of its own")
    made = ClockOrders(tmp_path, ClockOrders.build(tmp_path), "clock")
    yield made
    made.close()


def test_only_the_wall_clock_is_shifted(orders: ClockOrders) -> None:
    reader = Reader(orders.environment)
    try:
        for offset in (0.0, 200 * DAY, -3.7, 0.25, -40 * DAY, 0.0):
            orders.be_off(offset)
            walls, monotonic, waited = reader.times()
            for wall in walls:
                assert wall - time.time() == pytest.approx(offset, abs=2)
            assert max(walls) - min(walls) < 1
            assert monotonic == pytest.approx(time.monotonic(), abs=2)
            assert 0.09 < waited < 5, "waits go by another clock"
    finally:
        reader.end()


def test_shifted_calls_are_counted(orders: ClockOrders) -> None:
    reader = Reader(orders.environment)
    try:
        reader.times()
        assert orders.shifted() == 0
        orders.be_off(DAY)
        reader.times()
        assert orders.shifted() >= 3
        orders.work()
        before = orders.shifted()
        reader.times()
        assert orders.shifted() == before
    finally:
        reader.end()


def test_a_missing_page_ends_the_process_instead_of_leaving_its_clock_right(orders: ClockOrders) -> None:
    environment = os.environ | orders.environment | {"CHAOS_CLOCK_ORDERS": "/nowhere"}
    done = subprocess.run([sys.executable, "-c", "pass"], env=environment, check=False, capture_output=True)
    assert done.returncode < 0
