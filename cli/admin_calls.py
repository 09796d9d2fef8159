"""Run one administrative call: open an `Admin`, call it, close it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from raftmq.cli.exit_codes import CommandError, exit_code_of, sentence_of
from raftmq.errors import RaftMQError

if TYPE_CHECKING:
    from raftmq.client.admin.admin import Admin

Answer = TypeVar("Answer")


def run_admin(bootstrap_servers: str, timeout: float, question: Callable[[Admin], Awaitable[Answer]]) -> Answer:
    """Run one call with an open Admin. `timeout` is in seconds."""
    import asyncio

    from raftmq.client.admin.admin import Admin

    async def run() -> Answer:
        async with Admin(bootstrap_servers=bootstrap_servers, request_timeout_ms=timeout * 1000) as admin:
            return await question(admin)

    return asyncio.run(run())


def run_question(bootstrap_servers: str, timeout: float, question: Callable[[Admin], Awaitable[Answer]]) -> Answer:
    """Run a call that changes nothing, in a command that otherwise changes something. Raises `CommandError`."""
    with as_question():
        return run_admin(bootstrap_servers, timeout, question)


@contextmanager
def as_question() -> Iterator[None]:
    """Report the failures of the block as those of a question (`exit_codes.reported_question`): it changes nothing. Raises `CommandError`."""
    try:
        yield
    except RaftMQError as error:
        raise CommandError(sentence_of(error, is_question=True), exit_code_of(error, is_question=True)) from None
