"""Send an invoice for each order, until SIGTERM. This is the service `worker` of docker-compose.yml."""

import json
import os

from raftmq import Record, Worker


def send_invoice(record: Record) -> None:
    """Send the invoice of one order. It may run twice for an order after a crash."""
    print("invoice for", json.loads(record.value or b"{}"), flush=True)


def main() -> None:
    """Work on orders. The worker ends by itself on SIGTERM."""
    Worker("orders", "invoices", send_invoice, bootstrap_servers=os.environ["RAFTMQ_BOOTSTRAP_SERVERS"]).run()


if __name__ == "__main__":
    main()
