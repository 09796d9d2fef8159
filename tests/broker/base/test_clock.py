"""The clocks of a machine (`broker/base/clock.py`)."""

from pathlib import Path

import pytest
from raftmq.broker.base.clock import WallClock

UPTIME = Path("/proc/uptime")


@pytest.mark.skipif(not UPTIME.exists(), reason="the kernel says elsewhere how long it runs")
def test_the_boot_time_is_the_uptime_of_the_machine_with_its_suspensions():
    """The kernel's uptime counts suspension, too."""
    clock = WallClock()
    before_ns = clock.boottime_ns()
    uptime_ns = float(UPTIME.read_text().split()[0]) * 1e9
    assert before_ns - 1e7 <= uptime_ns <= clock.boottime_ns() + 1e7
