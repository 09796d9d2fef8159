"""Count the hostile frames of all tests in this folder. The tests here run last, in any order of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.conftest import LIMITS, MARGIN_BYTES, Victim
from tests.support.hostile.attackers import MIB, resident_bytes
from tests.support.hostile.fuzzing import FRAMES, is_whole_run

pytestmark = pytest.mark.e2e

PORTS = {"client port": 5_000, "data port": 100_000, "peer port": 30_000, "HTTP port": 1_500}
"""Minimum number of frames through real sockets to a real broker."""
DAILY = "not long"
"""The mark expression of `make test`, which excludes no test of this folder."""
RESIDENT_BYTES_MAX = LIMITS.receiving_bytes_max + LIMITS.recent_entries_bytes_max + 2 * MARGIN_BYTES
"""Limit of the memory growth over all attacks: allocators keep fragments of the largest budget, and recent records stay in memory."""


def _is_folder_complete(request: pytest.FixtureRequest) -> bool:
    """Return whether the run has all tests of this folder, without a selection by name or mark."""
    here = Path(__file__).parent
    ran = {item.path for item in request.session.items if item.path.parent == here}
    option = request.config.option
    is_chosen = (
        option.keyword
        or option.markexpr not in ("", DAILY)
        or any("::" in argument for argument in request.config.args)
    )
    return is_whole_run() and not is_chosen and ran == set(here.glob("test_*.py"))


def test_at_least_a_hundred_thousand_hostile_frames_were_sent_and_the_broker_has_not_grown(
    request: pytest.FixtureRequest, victim: Victim
):
    if not _is_folder_complete(request):
        pytest.skip("only a part of the folder runs")
    for name, count in sorted(FRAMES.items()):
        print(f"{count:7,} {name}")
    resident = resident_bytes(victim.pid)
    print(
        f"{sum(FRAMES.values()):7,} in total; the broker has {resident // MIB} MiB now, {victim.resident_at_first // MIB} MiB at first"
    )
    for port, least in PORTS.items():
        assert FRAMES[port] >= least, port
    assert sum(FRAMES.values()) >= 100_000
    assert resident - victim.resident_at_first < RESIDENT_BYTES_MAX
