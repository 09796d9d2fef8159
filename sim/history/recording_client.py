"""`RecordingClient`: what the recording wrappers of the SDK's clients have in common. Must not know what they record."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from sim.history.recorder import Recorder


class Client(Protocol):
    """A client of the SDK."""

    async def start(self) -> None:
        """Once, before anything else."""

    async def close(self) -> None:
        """Once, after everything else."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Closed, whatever ended the block."""


class RecordingClient:
    """Wraps a client; started and closed as it is, or by ``async with``.

    Args:
        client: not shared with anybody else.
        recorder: where to write.
        process: this client's name; one started again has a new one.
    """

    def __init__(self, client: Client, recorder: Recorder, process: str) -> None:
        self._client = client
        self.process = process
        self._recorder = recorder

    async def start(self) -> None:
        """As the client's."""
        await self._client.start()

    async def close(self) -> None:
        """As the client's."""
        try:
            await self._client.close()
        finally:
            await self._ended()

    async def _ended(self) -> None:
        """The client is closed: whatever is still to be written must be."""

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
