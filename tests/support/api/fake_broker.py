"""Stands in for ``raftmq``: a process that says it is ready and answers Admin.DescribeCluster. Takes `broker start` arguments.

Behaviour is chosen by the environment variable FAKE_BROKER: "" (healthy), "exit" (fails at start), "mute" (never ready).
"""

import itertools
import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from raftmq.proto import queue_pb2


def describe(request: object, context: object) -> queue_pb2.DescribeClusterResponse:
    count = int(os.environ["FAKE_CLUSTER_SIZE"])
    voters = int(os.environ.get("FAKE_VOTERS", count))
    return queue_pb2.DescribeClusterResponse(
        brokers=[
            queue_pb2.ClusterBroker(
                broker=queue_pb2.Broker(broker_id=n), is_metadata_voter=n <= voters, is_connected=True
            )
            for n in range(1, count + 1)
        ]
    )


def main() -> int:
    arguments = sys.argv[1:]
    assert arguments[:2] == ["broker", "start"]
    options = dict(itertools.pairwise(arguments))
    data = Path(options["--data-dir"])
    data.mkdir(parents=True, exist_ok=True)
    with (data / "starts").open("a") as starts:
        starts.write(" ".join(arguments) + "\n")
    mode = os.environ.get("FAKE_BROKER", "")
    if mode == "exit":
        print("cannot open the data directory: it is full of bees", file=sys.stderr)
        return 3
    # A handler that sets an event can interrupt the wait for that event while it holds the event's lock. Then neither returns.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # threads that start later inherit it
    server = grpc.server(ThreadPoolExecutor(2))
    handler = grpc.unary_unary_rpc_method_handler(
        describe,
        request_deserializer=queue_pb2.DescribeClusterRequest.FromString,
        response_serializer=queue_pb2.DescribeClusterResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("raftmq.v1.Admin", {"DescribeCluster": handler})]
    )
    host, port = options["--listen"].split(":")
    bound = server.add_insecure_port(f"{host}:{port}")
    server.start()
    print("warming up", file=sys.stderr)
    if mode != "mute":
        ready = {
            "event": "broker_ready",
            "broker_id": int(options["--broker-id"]),
            "client_address": f"127.0.0.1:{bound}",
            "peer_address": "127.0.0.1:1",
            "http_address": "127.0.0.1:2",
            "cluster_id": "c",
        }
        print("not json", flush=True)
        print(json.dumps(ready), flush=True)
    signal.sigwait({signal.SIGTERM})
    server.stop(0).wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
