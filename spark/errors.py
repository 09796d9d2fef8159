"""Define the errors that the Spark source raises beside the SDK's, and the category of its warnings. Must not import Spark."""

from __future__ import annotations

from raftmq.errors import RejectedError, UsageError

__all__ = ["InvalidOptionError", "RaftMQSparkWarning", "RecordsLostError"]


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
