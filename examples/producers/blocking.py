"""Produce without an event loop, by the same classes in `raftmq.sync`, for scripts and threads.

Usage: python examples/producers/blocking.py [SERVERS]

Prints::

    4 threads wrote 400 records
    the last one is at offset 400
"""

import sys
from concurrent.futures import ThreadPoolExecutor

from raftmq.sync import Admin, Producer

SERVERS = sys.argv[1] if len(sys.argv) > 1 else "localhost:9400"


def main() -> None:
    """Write from several threads, which share one producer."""
    with Admin(bootstrap_servers=SERVERS) as admin:
        admin.create_topic("blocking", partitions=1, if_not_exists=True)
    with Producer(bootstrap_servers=SERVERS) as producer:

        def work(number: int) -> int:
            records = [(b"thread-%d" % number, b"%d" % n) for n in range(100)]
            spans = producer.send_many("blocking", records).result(timeout_seconds=60)
            return sum(span.record_count for span in spans)

        with ThreadPoolExecutor(4) as threads:
            print(f"4 threads wrote {sum(threads.map(work, range(4)))} records")
        print(f"the last one is at offset {producer.send_and_wait('blocking', value=b'end').offset}")


main()
