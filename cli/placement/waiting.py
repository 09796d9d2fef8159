"""Wait for work that the cluster does in the background, and show its progress.

The command only watches. Whatever ends it, the cluster continues the work, and the command says so.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from raftmq.cli.exit_codes import CommandError, ExitCode, sentence_of

POLL_SECONDS: Final = 1.0
"""Interval of the questions to the cluster: soon enough for a person, and negligible work for the brokers."""
LINE_SECONDS: Final = 10.0
"""Minimum interval of the lines in a pipe, so that hours of copying fill no log."""
STALLED_SECONDS: Final = 30.0
"""Time without any move after which unfinished work counts as stuck. A new metadata leader plans within a few seconds."""
HINT: Final = "raftmq cluster moves shows the progress"


@dataclass(frozen=True, slots=True)
class Progress:
    """The work at one moment."""

    done: int
    total: int
    sentence: str
    is_over: bool
    is_idle: bool = False
    """Whether nothing moves and nothing waits for its turn. Unfinished idle work is stuck."""
    obstacle: str = "the cluster plans no further move"
    """The reason why idle work does not continue."""


Look = Callable[[], Awaitable[Progress]]
Show = Callable[[Progress], None]


async def wait_until_over(what: str, look: Look) -> None:
    """Look at the work until it is over.

    Args:
        what: The work, for the display, such as "draining broker 3".
        look: Ask the cluster for the present state.

    Raises:
        CommandError: The work is stuck, or the cluster does not answer.
    """
    import asyncio

    try:
        with shown(what) as show:
            idle_since: float | None = None
            while True:
                progress = await _looked(what, look)
                show(progress)
                if progress.is_over:
                    return
                now = time.monotonic()
                idle_since = (idle_since or now) if progress.is_idle else None
                if idle_since is not None and now - idle_since >= STALLED_SECONDS:
                    raise CommandError(f"{what}: {progress.sentence}, but {progress.obstacle}", ExitCode.BAD_DATA)
                await asyncio.sleep(POLL_SECONDS)
    except asyncio.CancelledError:
        print(f"the cluster continues the work: {HINT}", file=sys.stderr)
        raise


async def _looked(what: str, look: Look) -> Progress:
    """Return the present state. An error only means that it is unknown: the command was accepted before."""
    from raftmq.errors import RaftMQError

    try:
        return await look()
    except RaftMQError as error:
        raise CommandError(
            f"{what}: the command was accepted and the cluster continues the work, but its state is unknown "
            f"({HINT}): {sentence_of(error, is_question=True)}",
            ExitCode.UNKNOWN_OUTCOME,
        ) from None


@contextmanager
def shown(what: str) -> Iterator[Show]:
    """Show the progress on standard error: as a bar on a terminal, otherwise as a line whenever the sentence has changed."""
    if not sys.stderr.isatty():
        yield _Lines(what).show
        return
    from rich.console import Console, RenderableType
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar
    from rich.text import Text

    class SentenceBelow(Bar):
        """A bar with the sentence in a line of its own: a narrow terminal has no room for both in one."""

        def get_renderables(self) -> Iterator[RenderableType]:
            yield self.make_tasks_table(self.tasks)
            yield from (Text(one.fields["sentence"]) for one in self.tasks if one.fields["sentence"])

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with SentenceBelow(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None, sentence="")

        def show(progress: Progress) -> None:
            bar.update(task, completed=progress.done, total=progress.total, sentence=progress.sentence)

        yield show


class _Lines:
    """Progress as lines."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._last = ""
        self._last_seconds = 0.0

    def show(self, progress: Progress) -> None:
        now = time.monotonic()
        is_due = not self._last or progress.is_over or now - self._last_seconds >= LINE_SECONDS
        if is_due and progress.sentence != self._last:
            print(f"{self._what}: {progress.sentence}", file=sys.stderr, flush=True)
            self._last, self._last_seconds = progress.sentence, now
