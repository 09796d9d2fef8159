"""What the Spark source raises beside the SDK's errors, and the category of its warnings. Must not import Spark."""

from __future__ import annotations

from raftmq.errors import RejectedError, UsageError

__all__ = ["InvalidOptionError", "RaftMQSparkWarning", "RecordsLostError"]


class RaftMQSparkWarning(UserWarning):
    """Something a user of the data source should know; it goes to the standard error of the Python worker, once per process.

    Not the SDK's logger: nothing configures logging in Spark's Python workers, so there it would be silent.
    """


class InvalidOptionError(UsageError):
    """An option of the data source is missing, malformed, refused or contradicts another; nothing was read or written."""


class RecordsLostError(RejectedError):
    """Records that the query has not read are gone: trimmed by retention or by hand, or their topic was deleted.

    Raised with ``failOnDataLoss=true``, the default; nothing was skipped. With ``failOnDataLoss=false`` the query warns and goes on
    with what there is.
    """

    advice = "set failOnDataLoss=false to go on with what is left"
