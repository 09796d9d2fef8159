"""Write orders, and send an invoice for each with a worker. This is the first program of the guide to workers."""

import json
import threading

from raftmq import Record, Worker
from raftmq.sync import Admin, Producer
from raftmq.testing import LocalCluster

ORDERS = 20
invoices: dict[str, list[int]] = {}
lock = threading.Lock()
all_sent = threading.Event()


def send_invoice(record: Record) -> None:
    """Send the invoice of one order. It runs in one of the worker's threads."""
    order = json.loads(record.value or b"{}")
    with lock:
        invoices.setdefault(order["customer"], []).append(order["number"])
        if sum(map(len, invoices.values())) >= ORDERS:
            all_sent.set()


def stop_when_all_sent(worker: Worker) -> None:
    """End this program after all invoices, which a service would not do."""
    all_sent.wait()
    worker.stop()


def main() -> None:
    """Start three brokers, write orders, run a worker until each has its invoice."""
    with LocalCluster(brokers=3) as cluster:
        servers = cluster.bootstrap_servers
        with Admin(bootstrap_servers=servers) as admin:
            admin.create_topic("orders", partitions=6, replication_factor=3)
        with Producer(bootstrap_servers=servers) as producer:
            for number in range(ORDERS):
                customer = f"customer-{number % 4}"
                order = {"number": number, "customer": customer}
                producer.send("orders", key=customer.encode(), value=json.dumps(order).encode())

        worker = Worker("orders", "invoices", send_invoice, bootstrap_servers=servers)
        # A service just calls worker.run() and leaves the end to SIGTERM; this program ends by itself.
        threading.Thread(target=stop_when_all_sent, args=(worker,), daemon=True).start()
        worker.run()

    for customer, numbers in sorted(invoices.items()):
        print(customer, numbers)


if __name__ == "__main__":
    main()
