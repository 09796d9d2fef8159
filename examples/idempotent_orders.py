"""Handle records idempotently: each has its effect on the database once, even if it comes twice or the process is killed.

``python -m examples.idempotent_orders shop.db`` processes the topic `orders` until it gets SIGTERM or Ctrl-C.
"""

import os
import sqlite3
import sys
import threading

from raftmq import Record, Worker

SERVERS = os.environ.get("RAFTMQ_BOOTSTRAP_SERVERS", "127.0.0.1:9400")


class Shop:
    """Count orders in a database, each once."""

    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path, check_same_thread=False, timeout=30)
        self._lock = threading.Lock()
        self._database.execute("PRAGMA journal_mode = WAL")  # one write to the disk for each transaction
        with self._database:
            self._database.execute("CREATE TABLE IF NOT EXISTS done (order_id BLOB PRIMARY KEY) WITHOUT ROWID")
            self._database.execute("CREATE TABLE IF NOT EXISTS sold (article BLOB PRIMARY KEY, count INTEGER)")

    def handle(self, record: Record) -> None:
        """Book an order. One transaction holds its effect and the mark that it is done."""
        with self._lock, self._database:
            noted = self._database.execute("INSERT INTO done VALUES (?) ON CONFLICT DO NOTHING", (record.key,))
            if noted.rowcount:
                self._database.execute(
                    "INSERT INTO sold VALUES (?, 1) ON CONFLICT (article) DO UPDATE SET count = count + 1",
                    (record.value,),
                )


def main() -> None:
    """Process orders until a signal comes."""
    Worker("orders", "shop", Shop(sys.argv[1]).handle, session_timeout_ms=6_000, bootstrap_servers=SERVERS).run()


if __name__ == "__main__":
    main()
