"""Turn orders into invoices, each exactly once. You may kill this program at any time and start it again.

raftmq dev                                  # brokers, in another terminal
raftmq topic create orders --partitions 6
raftmq topic create invoices --partitions 6
raftmq topic create orders.dead --partitions 1
python examples/transform_orders.py
"""

import json
import sys

from raftmq import Output, Record, Transformer


def to_invoice(record: Record) -> Output:
    """Return the invoice of an order or, for a record that is not an order, a dead letter."""
    try:
        order = json.loads(record.value or b"")
        invoice = {"order": order["number"], "total": order["price"] * order["count"]}
    except (ValueError, KeyError, TypeError) as error:
        return Output("orders.dead", record.value, record.key, headers=[("error", repr(error).encode())])
    return Output("invoices", json.dumps(invoice).encode(), record.key)


if __name__ == "__main__":
    servers = sys.argv[1] if len(sys.argv) > 1 else "localhost:9400"
    Transformer("orders", "billing", to_invoice, bootstrap_servers=servers).run()
