"""Check that the table of log events agrees with the code in both directions, with fields of a closed vocabulary."""

from __future__ import annotations

import re

import pytest
from raftmq.broker.base import log_events
from raftmq.client.base import logs

from scripts.generate_docs import logged_events

BROKER = logged_events(("broker", "storage"))
SDK = logged_events(("client", "spark"))
FROM_LIBRARIES = {"library_message"}
SECRETS = re.compile(r"payload|password|secret|token|credential|^keys?$|^values?$|body|headers?$")


def test_the_documented_events_of_the_broker_are_those_that_it_logs() -> None:
    assert set(BROKER) | FROM_LIBRARIES == set(log_events.EVENTS)


def test_the_documented_events_of_the_sdk_are_those_that_it_logs() -> None:
    assert set(SDK) == set(logs.EVENTS)


@pytest.mark.parametrize("event", [*BROKER, *SDK])
def test_names_of_events_are_static_facts(event: str) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)+", event)


def test_fields_of_the_broker_are_of_a_closed_vocabulary() -> None:
    used = {field for _, fields in BROKER.values() for field in fields}
    assert used | {"library", "message"} == set(log_events.FIELDS)


def test_no_field_name_stands_for_payloads_or_secrets() -> None:
    fields = {field for found in (BROKER, SDK) for _, names in found.values() for field in names}
    assert {field for field in fields if SECRETS.search(field)} == set()
    assert SECRETS.search("payload")


@pytest.mark.parametrize("event", BROKER)
def test_an_event_has_one_level(event: str) -> None:
    """Otherwise an event's name does not tell its severity."""
    levels, _ = BROKER[event]
    assert len(levels) == 1
