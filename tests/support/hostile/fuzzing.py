"""Fuzz with seeds: every case has its own generator, and a failing case names the command that repeats it alone.

`HOSTILE_SEED` changes all cases. `HOSTILE_CASE` runs only the case with that number of each fuzzed subject.
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from random import Random

SEED = int(os.environ.get("HOSTILE_SEED", "1"))
_ONLY = os.environ.get("HOSTILE_CASE")

BOUNDARIES = (
    0,
    1,
    2,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**53,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
"""Values at the limits of counts, lengths, terms and sequences."""
FRAMES: Counter[str] = Counter()
"""Number of hostile frames, requests and messages in this run, by recipient.

A connection's frames count up to the frame that ended it."""

_WIDTHS = ((1, "<B"), (2, "<H"), (4, "<I"), (8, "<Q"))


def _numbers(count: int) -> Iterator[int]:
    return iter((int(_ONLY),) if _ONLY is not None else range(count))


def _blame(error: BaseException, name: str, number: int) -> None:
    error.add_note(f"{name}, case {number}: replay with HOSTILE_SEED={SEED} HOSTILE_CASE={number} pytest -k '{name}'")


def fuzz(name: str, count: int, case: Callable[[Random], str]) -> Counter[str]:
    """Run `case` with `count` generators for the test `name`, and count its outcomes."""
    outcomes: Counter[str] = Counter()
    for number in _numbers(count):
        try:
            outcomes[case(Random(SEED << 32 | number))] += 1
            FRAMES[name] += 1
        except BaseException as error:
            _blame(error, name, number)
            raise
    return outcomes


async def fuzz_async(name: str, count: int, case: Callable[[Random], Awaitable[str]]) -> Counter[str]:
    """Do the same as `fuzz` for coroutines, one after the other."""
    outcomes: Counter[str] = Counter()
    for number in _numbers(count):
        try:
            outcomes[await case(Random(SEED << 32 | number))] += 1
            FRAMES[name] += 1
        except BaseException as error:
            _blame(error, name, number)
            raise
    return outcomes


def is_whole_run() -> bool:
    """Return whether all cases run, so that counts of outcomes mean something."""
    return _ONLY is None


# ------------------------------------------------------------------------------------------------------------ mutations


def _flip(rng: Random, data: bytearray) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _truncate(rng: Random, data: bytearray) -> None:
    del data[rng.randrange(len(data)) :]


def _extend(rng: Random, data: bytearray) -> None:
    data += rng.randbytes(rng.choice((1, 3, 8, 64)))


def _lie(rng: Random, data: bytearray) -> None:
    """Put a boundary value at a random position."""
    width, form = rng.choice([pair for pair in _WIDTHS if pair[0] <= len(data)])
    number = rng.choice(BOUNDARIES) + rng.choice((0, 0, 1, -1))
    struct.pack_into(form, data, rng.randrange(len(data) - width + 1), number & (256**width - 1))


def _remove(rng: Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.randint(1, 16)]


def _repeat(rng: Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    piece = data[at : at + rng.randint(1, 64)]
    data[at:at] = piece * rng.choice((1, 1, 4))


_MUTATIONS = (_flip, _truncate, _extend, _lie, _lie, _remove, _repeat)


def mutated(rng: Random, data: bytes) -> bytes:
    """Return the data after one to three mutations, or, rarely, random bytes."""
    if rng.random() < 0.03:
        return rng.randbytes(rng.choice((0, 1, 7, 64, 300)))
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if not changed:
            break
        rng.choice(_MUTATIONS)(rng, changed)
    return bytes(changed)


def spliced(rng: Random, samples: Sequence[bytes]) -> bytes:
    """Return the beginning of one sample followed by the end of another."""
    first, second = rng.choice(samples), rng.choice(samples)
    return first[: rng.randint(0, len(first))] + second[rng.randint(0, len(second)) :]


def hostile(rng: Random, samples: Sequence[bytes]) -> bytes:
    """Return a mutated sample, or parts of two samples."""
    if rng.random() < 0.1:
        return spliced(rng, samples)
    return mutated(rng, rng.choice(samples))
