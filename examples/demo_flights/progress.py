"""Show progress as a bar on a terminal, and as lines elsewhere."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

LINES_PER_STAGE = 5


class Stage:
    """Count the progress of one piece of work."""

    def __init__(self, reporter: "Reporter", title: str, total: int, bar: Progress | None) -> None:
        self._reporter = reporter
        self._title = title
        self._total = total
        self._bar = bar
        self._task = bar.add_task(title, total=total) if bar is not None else None
        self._done = 0

    def advance(self, count: int) -> None:
        """Count finished work."""
        before, self._done = self._done, self._done + count
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, advance=count)
        elif self._done * LINES_PER_STAGE // self._total > before * LINES_PER_STAGE // self._total:
            self._reporter.say(f"  {self._title}: {self._done:,} of {self._total:,}")


class Reporter:
    """Print stages and remarks to one stream."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._console = Console(file=self._stream, highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """Print one line, above the bar if there is one."""
        if self._stream.isatty():
            self._console.print(text, markup=False)
        else:
            print(text, file=self._stream, flush=True)

    @contextmanager
    def stage(self, title: str, total: int) -> Iterator[Stage]:
        """Show a piece of work of `total` units. Its bar disappears from the terminal when the block ends."""
        if not self._stream.isatty():
            yield Stage(self, title, total, None)
            return
        columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console) as bar:
            yield Stage(self, title, total, bar)
