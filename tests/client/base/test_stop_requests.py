"""Signals reach the running event loop, also where event loops watch no signals."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from raftmq.client.base.stop_requests import signals_taken


@pytest.mark.parametrize("is_watched", [True, False])
async def test_a_termination_signal_calls_back_on_the_loop(monkeypatch: pytest.MonkeyPatch, is_watched: bool) -> None:
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    before = signal.getsignal(signal.SIGTERM)

    def as_on_windows(*arguments: object) -> None:
        raise NotImplementedError

    if not is_watched:
        monkeypatch.setattr(loop, "add_signal_handler", as_on_windows)
        monkeypatch.setattr(loop, "remove_signal_handler", as_on_windows)
    with signals_taken(stopped.set):
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(30):
            await stopped.wait()
    assert signal.getsignal(signal.SIGTERM) is before
