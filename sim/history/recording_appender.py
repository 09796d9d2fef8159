"""`RecordingAppender`: a `SequencedAppender` of the SDK whose claims are recorded. It must not change the client's behaviour."""

from __future__ import annotations

from raftmq.client.producer.sequenced_append import NamedEpoch, SequencedAppender, StampClaim

from sim.history.recorder import OpenOperation, Recorder


class RecordingAppender:
    """Wraps an appender.

    Args:
        appender: The appender.
        recorder: Records the operations.
        process: The name of this client.
    """

    def __init__(self, appender: SequencedAppender, recorder: Recorder, process: str) -> None:
        self.appender = appender
        self.process = process
        self._recorder = recorder

    async def claim(
        self,
        name: str,
        epoch: int,
        stamp: bytes = b"",
        replaces: bytes | None = None,
        *,
        then: StampClaim | None = None,
    ) -> NamedEpoch:
        """See `SequencedAppender.claim`. A second claim is an operation of its own, and must not add bits.

        The outcome of a claim with an error is unknown.
        """
        first = self._recorder.invoke(
            self.process, "claim", name=name, epoch=epoch, stamp=stamp.decode(), replaces=_text(replaces)
        )
        second = self._invoke_second(then, first) if then is not None else None
        try:
            answer = await self.appender.claim(name, epoch, stamp, replaces, then=then)
        except BaseException as error:
            for operation in filter(None, (first, second)):
                operation.info(error=type(error).__name__, detail=str(error))
            raise
        first.ok(epoch=answer.epoch, stamp=answer.stamp.decode())
        if second is not None and then is not None:
            if answer.then is None:  # an earlier attempt without an answer may have made it
                second.info()
            else:
                second.ok(epoch=then.epoch, stamp=answer.then.decode())
        return answer

    def _invoke_second(self, then: StampClaim, first: OpenOperation) -> OpenOperation:
        if then.shared_bytes:
            raise ValueError("a history has no claims that add bits to a stamp")
        stamp, replaces = then.stamp.decode(), _text(then.replaces)
        return self._recorder.invoke(
            self.process, "claim", name=then.name, epoch=then.epoch, stamp=stamp, replaces=replaces, after=first.id
        )


def _text(stamp: bytes | None) -> str | None:
    return None if stamp is None else stamp.decode()
