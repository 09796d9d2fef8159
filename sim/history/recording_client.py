"""`RecordingClient`: the common base of the recording wrappers of the SDK's clients. It must not know their operations."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from sim.history.recorder import Recorder


class Client(Protocol):
    """A client of the SDK."""

    async def start(self) -> None:
        """Start the client. Called once, before anything else."""

    async def close(self) -> None:
        """Close the client. Called once, after everything else."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Close the client at the end of the block."""


class RecordingClient:
    """Wraps a client. It is started and closed like the client, or by ``async with``.

    Args:
        client: The client, which has no other user.
        recorder: Records the operations.
        process: The name of this client. A client that is started again has a new name.
    """

    def __init__(self, client: Client, recorder: Recorder, process: str) -> None:
        self._client = client
        self.process = process
        self._recorder = recorder

    async def start(self) -> None:
        """Start the client."""
        await self._client.start()

    async def close(self) -> None:
        """Close the client and finish recording."""
        try:
            await self._client.close()
        finally:
            await self._ended()

    async def _ended(self) -> None:
        """Finish recording after the client was closed."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._client.__aexit__(kind, error, traceback)
        finally:
            await self._ended()
