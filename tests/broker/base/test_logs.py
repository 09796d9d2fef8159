"""The form of log lines."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import structlog
from raftmq.broker.base.logs import configure_logs
from raftmq.broker.environment import EXIT_ABNORMAL


@pytest.fixture(autouse=True)
def _restore():
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


def _lines(capsys) -> list[dict[str, object]]:
    captured = capsys.readouterr()
    assert captured.out == ""
    return [json.loads(line) for line in captured.err.splitlines()]


def test_an_event_is_one_json_object_on_standard_error(capsys):
    configure_logs("info", is_console=False)
    log = structlog.get_logger("x")
    log.debug("too_much")
    log.info("leader_elected", group_id=3, term=7)
    (line,) = _lines(capsys)
    assert line["event"] == "leader_elected"
    assert (line["group_id"], line["term"], line["level"]) == (3, 7, "info")
    assert str(line["timestamp"]).endswith("Z")


def test_an_exception_stays_on_its_line(capsys):
    configure_logs("info", is_console=False)
    try:
        int("broken")
    except ValueError:
        structlog.get_logger().exception("request_failed")
    (line,) = _lines(capsys)
    assert "ValueError: invalid literal" in str(line["exception"])


def test_messages_of_libraries_have_the_same_form_from_warning_on(capsys):
    configure_logs("debug", is_console=False)
    logging.getLogger("some.library").info("chatter")
    logging.getLogger("some.library").warning("odd: %s", 5)
    (line,) = _lines(capsys)
    assert (line["event"], line["library"], line["message"]) == ("library_message", "some.library", "odd: 5")


def test_events_below_the_level_are_not_logged(capsys):
    configure_logs("error", is_console=False)
    structlog.get_logger().warning("healing")
    structlog.get_logger().error("act")
    assert [line["event"] for line in _lines(capsys)] == ["act"]


def test_a_terminal_gets_text(capsys):
    configure_logs("info", is_console=True)
    structlog.get_logger().info("leader_elected", term=7)
    text = capsys.readouterr().err
    assert "leader_elected" in text
    assert not text.startswith("{")


@pytest.mark.parametrize("is_journal", [True, False])
def test_lines_for_the_journal_begin_with_their_level(tmp_path: Path, is_journal: bool) -> None:
    """A child that inherits the variable with another standard error writes plain lines."""
    program = (
        "import logging, structlog; from raftmq.broker.base.logs import configure_logs; configure_logs('debug'); log = structlog.get_logger();"
        "log.debug('a'); log.info('b'); log.warning('c'); log.error('d'); logging.getLogger('x').error('e')"
    )
    with (tmp_path / "journal").open("w") as journal:
        found = os.fstat(journal.fileno() if is_journal else 0)
        environment = os.environ | {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        subprocess.run([sys.executable, "-c", program], stderr=journal, env=environment, check=True)
    lines = (tmp_path / "journal").read_text().splitlines()
    if is_journal:
        assert [line[:3] for line in lines] == ["<7>", "<6>", "<4>", "<3>", "<3>"]
        lines = [line[3:] for line in lines]
    assert [json.loads(line)["event"] for line in lines] == ["a", "b", "c", "d", "library_message"]


ENDING = """
import sys
from types import SimpleNamespace
from raftmq.broker.base.logs import configure_logs
from raftmq.broker.environment import end_process
from raftmq.broker.node import Node
configure_logs("info")
node = SimpleNamespace(config=SimpleNamespace(data_dir="data"), _parts=SimpleNamespace(end_process=end_process))
Node.on_fatal(node, RuntimeError("commit failed"))
"""


@pytest.mark.parametrize("how", ["full", "nobody reads"])
def test_a_line_that_cannot_be_written_is_lost_and_keeps_no_process_alive(how: str) -> None:
    """A failed commit was to be logged before the process ended, on the same full volume. The process went on without its writer."""
    if how == "full":
        descriptor = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, descriptor = os.pipe()
        os.close(reader)
    try:
        ended = subprocess.run([sys.executable, "-c", ENDING], stderr=descriptor, check=False, timeout=60)
    finally:
        os.close(descriptor)
    assert ended.returncode == EXIT_ABNORMAL
