"""Check the figures that are computed from terms and from /proc."""

import os
import threading
from pathlib import Path

import pytest

from bench import partitions
from bench.partitions import Leadership, term_rise

BEFORE = {1: Leadership(1, 5), 2: Leadership(1, 7), 3: Leadership(2, 2), 4: Leadership(1, 1)}


def test_a_term_rise_by_one_in_every_group_is_a_hundred_percent() -> None:
    after = {1: Leadership(2, 6), 2: Leadership(3, 8), 3: Leadership(2, 2), 4: Leadership(2, 2)}
    assert term_rise(BEFORE, after, killed=1) == partitions.TermRise(100.0, 1, 0)


def test_the_share_counts_groups_of_the_killed_broker_and_the_maximum_all_groups() -> None:
    after = {1: Leadership(2, 6), 2: Leadership(3, 9), 3: Leadership(3, 5), 4: Leadership(2, 2)}
    rise = term_rise(BEFORE, after, killed=1)
    assert rise.by_one_percent == pytest.approx(200 / 3)
    assert (rise.maximum, rise.bystanders) == (3, 1)


def test_the_kill_of_a_broker_without_leadership_is_no_measurement() -> None:
    with pytest.raises(ValueError, match="broker 9 led nothing"):
        term_rise(BEFORE, BEFORE, killed=9)


def test_the_target_of_idle_processors_is_for_a_thousand_partitions() -> None:
    def target(count: int) -> float | None:
        return next(figure.target for figure in partitions.figures(count) if figure.name == "idle_cpu")

    assert (target(300), target(1000)) == (None, 5.0)


def test_the_counts_of_a_process_follow_its_threads_and_descriptors() -> None:
    pid = os.getpid()
    started = partitions.cpu_seconds(pid)
    sum(range(3_000_000))
    assert partitions.cpu_seconds(pid) >= started
    before = partitions.threads(pid)
    stop = threading.Event()
    waiting = threading.Thread(target=stop.wait)
    waiting.start()
    assert partitions.threads(pid) >= before + 1
    stop.set()
    waiting.join()
    resident, proportional = partitions.memory_mib(pid)
    assert 1 < proportional <= resident
    opened = partitions.descriptors(pid)
    with Path(os.devnull).open():
        assert partitions.descriptors(pid) == opened + 1
