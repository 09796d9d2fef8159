"""Read the options of a read that shows the messages of queue topics. They are sent to the tasks. Must not import Spark or call the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, get_args

from raftmq.client.queue.new_message import check_tenant
from raftmq.client.queue.views import MessageStateName
from raftmq.errors import InvalidArgumentError
from raftmq.spark.base.options import ClientOptions, OptionReader, listed, read_client_options
from raftmq.spark.errors import InvalidOptionError

ANY_STATE: Final = "any"


@dataclass(frozen=True, slots=True)
class BrowseOptions:
    """Hold the checked options of one read. Pickled into every task."""

    client: ClientOptions
    topics: tuple[str, ...]
    state: str | None
    """Only messages in this state. None: in any."""
    tenant: str
    """Only messages of this subtree of tenants. Empty: of all."""


def read_browse_options(options: Mapping[str, str]) -> tuple[BrowseOptions, OptionReader]:
    """Read and check all options. Also return the reader, which knows all option names. Raises `InvalidOptionError`."""
    reader = OptionReader(options)
    if any(reader.text(name) is not None for name in ("subscribe", "subscribePattern", "assign")):
        raise InvalidOptionError("give one of subscribe, subscribePattern, assign and browse")
    if reader.boolean("pushFilters", False):
        raise InvalidOptionError(
            "pushFilters is for log topics: narrow a browse with the options state and tenant, which brokers apply"
        )
    names = listed(reader.text("browse"))
    if names is None:
        raise InvalidOptionError("browse: no topic is named")
    state = reader.choice("state", ANY_STATE, (ANY_STATE, *get_args(MessageStateName)))
    reader.text("columns")  # `RaftMQDataSource.schema` reads it
    found = BrowseOptions(
        client=read_client_options(reader),
        topics=tuple(dict.fromkeys(names)),
        state=None if state == ANY_STATE else state,
        tenant=_tenant(reader.text("tenant")),
    )
    reader.finish()
    return found, reader


def _tenant(text: str | None) -> str:
    try:
        return check_tenant(text or "")
    except InvalidArgumentError as error:
        raise InvalidOptionError(str(error)) from error
