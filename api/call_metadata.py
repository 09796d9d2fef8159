"""The keys of the gRPC metadata in calls of RaftMQ's protocol (docs/internals/protocol.md). Imports nothing of RaftMQ."""

from __future__ import annotations

from typing import Final

CLUSTER_KEY: Final = "raftmq-cluster-id"
"""Sent with a call: the cluster that it is for. A broker of another cluster refuses it with WRONG_CLUSTER, because addresses are reused, and
topic ids are small numbers that occur in every cluster."""
STATUS_DETAILS_KEY: Final = "grpc-status-details-bin"
"""Sent with an answer: a `google.rpc.Status` with an `ErrorDetail`."""
