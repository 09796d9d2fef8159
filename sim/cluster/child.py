"""Runs a function in a forked child process, since a simulation leaves unfinished tasks behind, which end with the process.

Otherwise the garbage collector would run their `finally` blocks at a time that does not depend on the seed. A child process that
exits runs none of them.
"""

# ruff: noqa: ANN401 -- functions have any parameters and results

from __future__ import annotations

import os
import pickle
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
A = TypeVar("A")


class ChildDiedError(Exception):
    """A child process ended without an answer."""


def in_child(function: Callable[..., T], *arguments: Any) -> T:
    """Return the function's result from a child process. Its exceptions are raised here."""
    process, pipe = _fork(function, arguments)
    with os.fdopen(pipe, "rb") as answers:
        data = answers.read()
    os.waitpid(process, 0)
    result: T = _result(data)
    return result


def map_in_children(
    function: Callable[[A], T], items: Sequence[A], jobs: int, on_failure: Callable[[A, Exception], T]
) -> Iterator[T]:
    """Yield the results in the order of the items, from `jobs` child processes at a time. `on_failure` replaces the result of a failed child."""
    running: dict[int, tuple[int, int, bytearray]] = {}
    done: dict[int, bytes] = {}
    begun = reported = 0
    while reported < len(items):
        while begun < len(items) and len(running) < jobs and begun - reported < 4 * jobs:
            process, pipe = _fork(function, (items[begun],))
            running[pipe] = (begun, process, bytearray())
            begun += 1
        ready, _, _ = select.select(list(running), [], [])
        for pipe in ready:
            number, process, data = running[pipe]
            piece = os.read(pipe, 1 << 16)
            if piece:
                data += piece
                continue
            os.close(pipe)
            os.waitpid(process, 0)
            done[number] = bytes(data)
            del running[pipe]
        while reported in done:
            try:
                result = _result(done.pop(reported))
            except Exception as error:  # noqa: BLE001 -- one item's failure does not affect the others
                result = on_failure(items[reported], error)
            yield result
            reported += 1


def _fork(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[int, int]:
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    process = os.fork()
    if process:
        os.close(writer)
        return process, reader
    code = 1
    try:
        os.close(reader)
        answer: tuple[bool, Any]
        try:
            answer = (True, function(*arguments))
        except BaseException as error:  # noqa: BLE001 -- passed to the parent
            answer = (False, error)
        try:
            data = pickle.dumps(answer)
        except Exception as error:  # noqa: BLE001 -- not every object can be pickled
            data = pickle.dumps((False, RuntimeError(f"{answer[1]!r} cannot be sent: {error}")))
        with os.fdopen(writer, "wb") as answers:
            answers.write(data)
        sys.stdout.flush()
        code = 0
    finally:
        os._exit(code)


def _result(data: bytes) -> Any:
    if not data:
        raise ChildDiedError("a child died without an answer")
    is_result, value = pickle.loads(data)
    if not is_result:
        raise value
    return value
