"""The SDK for synchronous code: the same classes and arguments, thread-safe and blocking.

One background thread with one event loop serves all clients of a process, because several gRPC event loops in one process are fragile.
Must not do work of its own: every method runs the asynchronous client's method of the same name there, and raises the same errors.

::

    with raftmq.sync.Producer(bootstrap_servers="localhost:9400") as producer:
        metadata = producer.send("flights", value=b"...").result()

Methods that wait can be interrupted (Ctrl-C). The background call is then cancelled, with the outcome that its asynchronous method documents
for cancellation.
"""

from __future__ import annotations

from raftmq.sync.admin import Admin as Admin
from raftmq.sync.consumer import Consumer as Consumer
from raftmq.sync.delivery import BulkDelivery as BulkDelivery
from raftmq.sync.delivery import Delivery as Delivery
from raftmq.sync.producer import Producer as Producer
from raftmq.sync.queue import Message as Message
from raftmq.sync.queue import Queue as Queue
from raftmq.sync.rebalance_listener import RebalanceListener as RebalanceListener

__all__ = ["Admin", "BulkDelivery", "Consumer", "Delivery", "Message", "Producer", "Queue", "RebalanceListener"]
