"""Attack the HTTP port of a real broker: /healthz must always answer, since a prober takes a silent broker for dead."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections import Counter
from random import Random

import pytest

from tests.hostile.conftest import LIMITS
from tests.support.hostile.attackers import connections, dial, wait_closed
from tests.support.hostile.fuzzing import FRAMES, SEED, is_whole_run, mutated

pytestmark = pytest.mark.e2e

MIB = 1024 * 1024
CASES = 2_000
GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
LATENCY_SECONDS_MAX = 5.0


def answer(address: str, request: bytes, patience_seconds: float = 5) -> bytes:
    """Return all bytes received until the connection is closed or the broker waits for more."""
    with dial(address) as sock:
        sock.settimeout(patience_seconds)
        with contextlib.suppress(OSError):
            sock.sendall(request)
        received = b""
        with contextlib.suppress(OSError):
            while data := sock.recv(65536):
                received += data
        return received


def check_health(address: str) -> None:
    started = time.monotonic()
    request = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    head, _, body = answer(address, request, LATENCY_SECONDS_MAX).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    assert json.loads(body)["status"] == "ok"
    assert time.monotonic() - started < LATENCY_SECONDS_MAX


async def test_an_invalid_request_is_refused_with_its_status(victim):
    for request, status in (
        (b"\xff" * 100 + b"\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\nzz\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 20_000, 400),
        (b"GET /" + b"x" * 20_000, 400),
        (b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", 405),
    ):
        received = await asyncio.to_thread(answer, victim.http_address, request)
        assert b"%d" % status in re.findall(rb"HTTP/1\.1 (\d{3}) ", received), (request[:60], received[:200])


async def test_mutated_requests_are_answered_or_refused(victim, siege):
    valid = [
        GET,
        b"GET /readyz HTTP/1.1\r\nHost: localhost:9402\r\nUser-Agent: probe/1.0\r\nAccept: */*\r\n\r\n",
        b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
        b"POST /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ]
    outcomes: Counter[int] = Counter()

    def send(number: int) -> None:
        rng = Random(SEED << 32 | number)
        request = mutated(rng, rng.choice(valid))
        with dial(victim.http_address) as sock:
            with contextlib.suppress(OSError):
                sock.sendall(request)
                sock.shutdown(1)
            received = b""
            with contextlib.suppress(ConnectionError):
                while data := sock.recv(65536):
                    received += data
        FRAMES["HTTP port"] += 1
        for line in received.splitlines():
            if line.startswith(b"HTTP/1.1 "):
                status = int(line.split()[1])
                is_readiness = status == 503 and b'"status":"not ready"' in received
                assert status < 500 or is_readiness, f"case {number} (HOSTILE_SEED={SEED}): {received[:800]!r}"
                outcomes[status] += 1

    def attack() -> None:
        for number in range(CASES):
            send(number)
            if number % 500 == 0:
                check_health(victim.http_address)

    async with siege("requests of 16 KiB", 64 * MIB):
        await asyncio.to_thread(attack)
    if is_whole_run():
        assert outcomes[400] > 100
        assert outcomes[200] > 20


async def test_thousands_of_slow_connections_do_not_keep_health_from_answering(victim, siege):
    """64 idle connections once made every request a 503, so a prober would have killed the broker."""
    heads = (b"", b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ")
    async with siege("http_connections_max", LIMITS.http_connections_max * 256 * 1024):
        with contextlib.ExitStack() as stack:
            socks = [
                sock for head in heads for sock in stack.enter_context(connections(victim.http_address, 700, head))
            ]
            await asyncio.to_thread(check_health, victim.http_address)
            closed = await asyncio.to_thread(wait_closed, socks, len(socks) - LIMITS.http_connections_max, 10)
            assert closed >= len(socks) - LIMITS.http_connections_max
            await asyncio.to_thread(check_health, victim.http_address)


async def test_unread_answers_and_endless_bodies_are_bounded(victim, siege):
    """The attack pipelines scrapes without reading, and sends a body larger than any limit."""
    scrapes = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 400
    endless = b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000000\r\n\r\n"

    def upload() -> None:
        with dial(victim.http_address) as sock, contextlib.suppress(OSError):
            sock.settimeout(1)
            sock.sendall(endless)
            for _ in range(64):
                sock.sendall(bytes(MIB))

    async with siege("http_connections_max", LIMITS.http_connections_max * 256 * 1024):
        with connections(victim.http_address, 100, scrapes):
            await asyncio.to_thread(upload)
            await asyncio.to_thread(check_health, victim.http_address)
