"""What the Spark sink raises beside the SDK's errors. Must not import Spark."""

from __future__ import annotations

from raftmq.errors import RejectedError, UsageError

__all__ = ["InvalidSchemaError", "NotInQueryError", "ReplayMismatchError", "SupersededError"]


class InvalidSchemaError(UsageError):
    """The columns of the data are not what the sink takes; nothing was written."""


class NotInQueryError(UsageError):
    """A streaming write runs outside of a streaming query's task, so nothing says which batch it belongs to; nothing was written."""


class ReplayMismatchError(RejectedError):
    """A task of a batch that is run again has other rows than before, or other tasks than before; it wrote nothing this time.

    The plan is not deterministic, or something that divides the rows among tasks was changed between the runs: the number of
    cores or files, an option of the source, the partitions of the topic. What the earlier run wrote stays. To go on, run the query
    as it was; or finish the batch with the option ``delivery=at-least-once``, which writes all of its rows again.
    """

    advice = "run the query as it was before, or write this one batch with the option delivery=at-least-once"


class SupersededError(RejectedError):
    """A later run of the same batch has begun: this one is left over from a driver that died; it writes nothing any more."""
