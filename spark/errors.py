"""Define the errors that the Spark source and sink raise beside the SDK's, and the category of their warnings. Must not import Spark."""

from __future__ import annotations

from raftmq.errors import RejectedError, UsageError

__all__ = [
    "BatchMarkedError",
    "BatchStillOpenError",
    "InvalidOptionError",
    "InvalidSchemaError",
    "LaterBatchError",
    "NotInQueryError",
    "RaftMQSparkWarning",
    "RecordsLostError",
    "ReplayMismatchError",
    "SupersededError",
    "TooManyWritesError",
]


class RaftMQSparkWarning(UserWarning):
    """Warn the user of the data source on the standard error of the Python worker, once per process.

    The SDK's logger would be silent, because nothing configures logging in Spark's Python workers.
    """


class InvalidOptionError(UsageError):
    """Raised when an option of the data source is missing, malformed, refused or contradicts another.

    Nothing was read or written.
    """


class RecordsLostError(RejectedError):
    """Raised when records that the query has not read were trimmed by retention or by hand, or their topic was deleted.

    It is raised with ``failOnDataLoss=true``, the default, and nothing was skipped. With ``failOnDataLoss=false`` the query warns and
    continues with the remaining records.
    """

    advice = "set failOnDataLoss=false to continue with the remaining records"


class InvalidSchemaError(UsageError):
    """Raised when the sink does not accept the columns of the data. Nothing was written."""


class NotInQueryError(UsageError):
    """Raised when a streaming write runs outside of a streaming query's task, so its batch is unknown. Nothing was written."""


class ReplayMismatchError(RejectedError):
    """Raised when a batch runs again with other rows in a task, or with other tasks. The task wrote nothing this time.

    The plan is not deterministic, or something that divides the rows among tasks was changed between the runs: the number of
    cores or files, an option of the source, the partitions of the topic. The rows of the earlier run stay. To continue, finish the batch with
    the option ``delivery=finish``, which reads back the rows of the earlier run and writes the others, or run the query as it was.
    """

    advice = "set the option delivery=finish, which reads back the rows of the earlier run and writes the others, or run the query as before"


class BatchMarkedError(ReplayMismatchError):
    """Raised when an atomic batch runs again after its mark, with rows that it did not have. The task wrote nothing this time.

    Readers of whole batches have perhaps read the batch, so they would see the other rows as a part of it.
    """

    advice = "write these rows under another writerEpoch or, for a query, under another writerName"


class BatchStillOpenError(RejectedError):
    """Raised when too many writers have an open batch in one topic, with ``atomicBatches``. The task wrote nothing this time.

    Their batches take long, or their drivers died and were not started again.
    """

    advice = (
        "start the other queries again, which finishes their batches; abandon the batch of one that never comes back with"
        " `python -m raftmq.spark batches --topic TOPIC --abandon WRITER`, but only if its query is dead: the batch of a running one is then"
        " read in parts"
    )


class LaterBatchError(RejectedError):
    """Raised when the query, or the writer of this name, has begun a later batch before. Nothing was written.

    The checkpoint was rolled back to an earlier batch, or copied for a second query that writes to the same topic, or two writers use one
    name.
    """

    advice = (
        "restore the query's latest checkpoint, or give the query a new writerName: it then writes the rows of this batch and of those"
        " that follow again"
    )


class SupersededError(RejectedError):
    """Raised when a later run of the same batch has begun. This run belongs to a dead driver and writes nothing more."""


class TooManyWritesError(RejectedError):
    """Raised when too many batch writes without a ``writerName`` run simultaneously, or did not end. Nothing was written."""

    advice = "give frequent or concurrent batch writes a writerName and a rising writerEpoch"
