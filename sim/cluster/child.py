"""Runs a function in a forked child: a simulation leaves half-dead tasks behind, which end with their process.

Its collector would run their `finally`, at a time that is not up to the seed; a child that exits runs nothing.
"""

# ruff: noqa: ANN401 -- what a function takes and gives

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
    """A child ended without an answer."""


def in_child(function: Callable[..., T], *arguments: Any) -> T:
    """The function's result, from a child. What it raises is raised here."""
    process, pipe = _fork(function, arguments)
    with os.fdopen(pipe, "rb") as answers:
        data = answers.read()
    os.waitpid(process, 0)
    result: T = _result(data)
    return result


def map_in_children(
    function: Callable[[A], T], items: Sequence[A], jobs: int, on_failure: Callable[[A, Exception], T]
) -> Iterator[T]:
    """The results in the order of the items, from so many children at a time; `on_failure` gives that of one that raised or died."""
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
            except Exception as error:  # noqa: BLE001 -- of one item, which the others do not depend on
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
        except BaseException as error:  # noqa: BLE001 -- it is the parent's
            answer = (False, error)
        try:
            data = pickle.dumps(answer)
        except Exception as error:  # noqa: BLE001 -- not everything can be sent
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
