"""The messages that an acceptance puts: checked alone, then as far as they must fit into one entry of the accepted message's partition."""

from __future__ import annotations

from collections.abc import Iterable

from raftmq.client.base import settings
from raftmq.client.codec.cells import Serializer
from raftmq.client.connection.resolver import TopicInfo
from raftmq.client.queue.new_message import CheckedMessage, NewMessage, batch_room, check_message, home_partition
from raftmq.client.queue.topic import QueueTopic
from raftmq.errors import InvalidArgumentError, RecordTooLargeError


class ChainChecks:
    """Checks the messages of `Message.ack(put=...)` for one `Queue`."""

    def __init__(self, topic: QueueTopic, serializer: Serializer | None, bytes_max: int) -> None:
        """Take `bytes_max`, the maximum bytes of several messages together."""
        self._topic = topic
        self._serializer = serializer
        self._bytes_max = bytes_max

    async def check(self, messages: Iterable[object], partition: int) -> tuple[CheckedMessage, ...]:
        """Return the messages as the request takes them.

        Raises:
            InvalidArgumentError: an argument is out of its range, there are too many messages, or one belongs to another partition.
            RecordTooLargeError: a message, or all of them together, are too large.
            TypeError: as `check_message`.
            RaftMQError: the errors of `QueueTopic.info`.
        """
        if isinstance(messages, bytes | str | NewMessage):
            raise TypeError("put takes several messages, such as [NewMessage(...)]")
        info = await self._topic.info()
        checked = []
        for message in messages:
            new = message if isinstance(message, NewMessage) else NewMessage(message)
            checked.append(check_message(new, self._serializer, info.message_bytes_max))
            _check_home(info, checked[-1], partition)
        if len(checked) > settings.CHAIN_MESSAGES_MAX:
            raise InvalidArgumentError(
                f"an ack puts at most {settings.CHAIN_MESSAGES_MAX} messages, not {len(checked)}: put the others before it"
            )
        size = sum(one.size for one in checked)
        room = batch_room(info, self._bytes_max)
        if len(checked) > 1 and size > room:
            raise RecordTooLargeError(
                f"the messages of an ack have {size} bytes together, but at most {room} are allowed: the smaller one of max_batch_size and "
                "of what a batch of the topic has"
            )
        return tuple(checked)


def _check_home(info: TopicInfo, message: CheckedMessage, partition: int) -> None:
    """Refuse a message that only another partition may hold. An ack and its messages are one entry of one partition."""
    home = home_partition(info, message)
    if home is not None and home != partition:
        field = "key" if info.is_ordered_by_key and message.key is not None else "id"
        raise InvalidArgumentError(
            f"the {field} of the message belongs to partition {home} of {info.name}, but an ack puts into its own partition {partition}: "
            "use a topic with one partition, or put the message before the ack"
        )
