"""Each gRPC server accepts its own calls of unknown methods, also when several servers start in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import grpc
import grpc.aio
import pytest
from raftmq.broker.grpc_port.hardening import start_server

pytestmark = pytest.mark.timeout(60)
CALL_SECONDS = 5.0


@contextlib.asynccontextmanager
async def _starting_together(count: int) -> AsyncIterator[tuple[list[grpc.aio.Server], list[int]]]:
    """Yield servers without methods that were started simultaneously, and their ports."""
    servers = [grpc.aio.server() for _ in range(count)]
    ports = [server.add_insecure_port("127.0.0.1:0") for server in servers]
    loop = asyncio.get_running_loop()
    await asyncio.gather(*(start_server(server, loop) for server in servers))
    try:
        yield servers, ports
    finally:
        for server in servers:
            await server.stop(0)


async def _answers_to_unknown(ports: Sequence[int]) -> list[grpc.StatusCode]:
    """Call an unknown method at each port. Return the statuses."""
    answers: list[grpc.StatusCode] = []
    for port in ports:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary("/nobody.Knows/This")(b"", timeout=CALL_SECONDS)
            answers.append(refused.value.code())
    return answers


async def test_servers_that_start_simultaneously_answer_their_own_unknown_calls():
    """A task factory belongs to the loop, so the second server took the first one's place in both.

    When the first server stopped, memory was freed that the second one's core wrote to at its own stop: a segmentation fault.
    """
    async with _starting_together(3) as (_, ports):
        assert await _answers_to_unknown(ports) == 3 * [grpc.StatusCode.UNIMPLEMENTED]


async def test_the_loop_has_its_own_task_factory_again_after_simultaneous_starts():
    async with _starting_together(3):
        assert asyncio.get_running_loop().get_task_factory() is None


async def test_a_server_answers_unknown_calls_after_another_one_has_stopped():
    async with _starting_together(2) as (servers, ports):
        await servers[0].stop(0)
        assert await _answers_to_unknown(ports[1:]) == [grpc.StatusCode.UNIMPLEMENTED]
