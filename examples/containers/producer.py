"""Write an order every second, until SIGTERM. This is the service `producer` of docker-compose.yml."""

import itertools
import json
import os
import signal
import time
from types import FrameType

from raftmq.errors import TopicAlreadyExistsError
from raftmq.sync import Admin, Producer

SERVERS = os.environ["RAFTMQ_BOOTSTRAP_SERVERS"]
CUSTOMERS = 4


def main() -> None:
    """Create the topic if it does not exist, and write orders of a few customers."""
    is_stopped = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        # A plain variable: a handler may interrupt code that holds the lock of an event.
        nonlocal is_stopped
        is_stopped = True

    for stop_signal in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop_signal, stop)
    with Admin(bootstrap_servers=SERVERS) as admin:
        try:
            admin.create_topic("orders", partitions=6, replication_factor=3)
        except TopicAlreadyExistsError:
            print("the topic orders exists already", flush=True)
    with Producer(bootstrap_servers=SERVERS) as producer:
        for number in itertools.count():
            customer = f"customer-{number % CUSTOMERS}"
            order = {"number": number, "customer": customer}
            producer.send_and_wait("orders", key=customer.encode(), value=json.dumps(order).encode())
            print("wrote", order, flush=True)
            time.sleep(1)
            if is_stopped:
                return


if __name__ == "__main__":
    main()
