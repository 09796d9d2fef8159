"""Reading and writing the format: events read back equal, as a stream, and an invalid line is named by its number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.history.__main__ import main
from sim.history.events import (
    Event,
    HistoryError,
    HistoryWriter,
    Kind,
    Operation,
    Partition,
    Records,
    decode_event,
    encode_event,
    read_events,
    read_history,
    write_history,
)

CASES = Path(__file__).parent / "cases"
TEXTS = st.none() | st.text(max_size=5)
NUMBERS = st.none() | st.integers(-(1 << 63), (1 << 63) - 1)
RECORDS = st.builds(
    Records, st.text(), st.integers(0, 9), st.lists(st.integers(0, 9), max_size=3), st.lists(st.text(), max_size=3)
)
EVENTS = st.builds(
    Event,
    process=st.text(max_size=5),
    time=st.integers(0, (1 << 63) - 1),
    kind=st.sampled_from(get_args(Kind)),
    operation=st.sampled_from(get_args(Operation)),
    id=st.integers(0, (1 << 63) - 1),
    topic=TEXTS,
    partition=NUMBERS,
    offset=NUMBERS,
    value=TEXTS,
    key=TEXTS,
    epoch=NUMBERS,
    producer=TEXTS,
    group=TEXTS,
    records=st.none() | st.lists(RECORDS, max_size=2),
    assignment=st.none() | st.lists(st.builds(Partition, st.text(), st.integers(0, 9)), max_size=2),
    ends=st.none() | st.lists(st.tuples(st.text(), st.integers(0, 9), st.integers(0, 9)), max_size=2),
    start=st.sampled_from([None, "earliest", "latest"]),
    partitions=NUMBERS,
    config=st.none() | st.dictionaries(st.text(), st.text(), max_size=2),
    unset=st.none() | st.lists(st.text(), max_size=2),
    is_unconfirmed=st.booleans(),
    error=TEXTS,
    detail=TEXTS,
)


@given(EVENTS)
def test_an_event_reads_back_as_it_was_written_from_one_line(event: Event) -> None:
    line = encode_event(event)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode_event(line) == event
    assert None not in json.loads(line).values()


def test_a_file_is_read_as_a_stream(tmp_path: Path) -> None:
    """Lines after a bad line are not read before they are requested."""
    path = tmp_path / "history.jsonl"
    good = encode_event(Event("p", 1, "invoke", "poll", 1))
    path.write_bytes(good + b"\n" + good + b"nonsense\n")
    events = read_events(path)
    assert [next(events).id, next(events).id] == [1, 1]
    with pytest.raises(HistoryError) as caught:
        next(events)
    assert (caught.value.line, caught.value.source) == (4, str(path))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "truncated"),
        (b"[]", "Expected `object`"),
        (b'{"process":"p","time":1,"kind":"invoke","operation":"poll"}', "missing required field `id`"),
        (b'{"process":"p","time":1,"kind":"maybe","operation":"poll","id":1}', "Invalid enum value 'maybe'"),
        (b'{"process":"p","time":1,"kind":"ok","operation":"fly","id":1}', "Invalid enum value 'fly'"),
        (b'{"process":"p","time":1.5,"kind":"ok","operation":"poll","id":1}', "Expected `int`"),
        (b'{"process":"p","time":1,"kind":"ok","operation":"poll","id":1,"ofset":3}', "unknown field `ofset`"),
        (b'{"process":"p","time":1,"kind":"ok","operation":"poll","id":1,"records":[["t",0,[1]]]}', "records"),
        (b'{"process":"\xff","time":1,"kind":"ok","operation":"poll","id":1}', "utf-8"),
        (b'{"process":"p","time":0,"kind":"invoke","operation":"poll","id":1}', "time goes back"),
    ],
)
def test_an_invalid_line_is_named(tmp_path: Path, line: bytes, reason: str) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(encode_event(Event("p", 1, "invoke", "poll", 1)) + line + b"\n")
    with pytest.raises(HistoryError, match=reason) as caught:
        list(read_events(path))
    assert caught.value.line == 2


def test_files_of_one_run_are_merged_by_time(tmp_path: Path) -> None:
    for name, times in (("a", (1, 4, 4)), ("b", (0, 4, 9))):
        write_history(tmp_path / name, [Event(name, time, "invoke", "poll", at) for at, time in enumerate(times)])
    merged = [(event.process, event.time) for event in read_history([tmp_path / "a", tmp_path / "b"])]
    assert merged == [("b", 0), ("a", 1), ("a", 4), ("a", 4), ("b", 4), ("b", 9)]


def test_lines_that_are_flushed_each_are_readable_before_the_end(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path / "h", is_flushed_each=True)
    writer.write(Event("p", 1, "invoke", "poll", 1))
    assert len(list(read_events(tmp_path / "h"))) == 1
    writer.close()
    writer.close()


# ----------------------------------------------------------------------------------------------------------- the command


def test_the_command_prints_findings_with_their_events(capsys) -> None:
    assert main([str(CASES / "aborted_read.flagged.jsonl")]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("aborted_read: a0 was read at t/0 offset 0")
    assert printed[1].startswith('    1: {"process":"w","time":10,"kind":"invoke","operation":"send"')
    assert printed[2].startswith('    2: {"process":"w","time":20,"kind":"fail"')
    assert printed[-1].startswith("1 aborted_read: 8 events, 4 operations judged")


def test_the_command_summarizes_the_judged_history(capsys) -> None:
    assert main([str(CASES / "aborted_read.clean.jsonl")]) == 0
    assert capsys.readouterr().out == (
        "nothing found: 8 events, 4 operations judged: 1 assign (1 ok); 1 poll (1 ok); 1 read_all (1 ok); 1 send (1 info)\n"
    )


def test_the_command_refuses_a_file_that_is_not_a_history(capsys, tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("{}\n")
    assert main([str(tmp_path / "bad")]) == 2
    assert f"{tmp_path / 'bad'}:1: " in capsys.readouterr().err
    assert main([str(tmp_path / "gone")]) == 2


def test_the_command_judges_each_file_on_its_own_on_request(capsys) -> None:
    """Both runs use the same process names and ids, so together they are not a history."""
    files = [str(CASES / f"{name}.clean.jsonl") for name in ("duplicate-read", "aborted_read")]
    assert main(files) == 2
    assert main(["--each", *files]) == 0
    assert main(["--each", *files, str(CASES / "unseen.flagged.jsonl")]) == 1
    assert "nothing found" in capsys.readouterr().out
