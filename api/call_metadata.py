"""The keys of gRPC metadata that calls of RaftMQ's protocol carry (docs/internals/protocol.md). Imports nothing of RaftMQ."""

from __future__ import annotations

from typing import Final

CLUSTER_KEY: Final = "raftmq-cluster-id"
"""With a call: the cluster that it is for. A broker of another one refuses it with WRONG_CLUSTER: addresses are used again, and topic
ids are small numbers that two clusters have in common."""
FORWARDED_KEY: Final = "raftmq-forwarded"
"""With a call that a broker passed on: it must not be passed on again."""
STATUS_DETAILS_KEY: Final = "grpc-status-details-bin"
"""With the answer: a `google.rpc.Status` with an `ErrorDetail`."""
