"""Book payments and refunds with a bank that is busy at first, using a handler's outcomes and a worker's callbacks."""

import asyncio
import json
import threading

from raftmq import Attempt, HandlerFailure, Record, Reject, Retry, Worker
from raftmq.sync import Admin, Producer
from raftmq.testing import LocalCluster

PAYMENTS = 10
all_done = threading.Event()


class BankBusyError(Exception):
    """Raised when the bank is busy and must be called later."""


class Bank:
    """Simulate a service that is reached over the network."""

    def __init__(self) -> None:
        self.is_open = False
        self.balance = 0
        self.bookings = 0

    async def connect(self) -> None:
        """Open the connection that all handlers use."""
        self.is_open = True

    async def disconnect(self) -> None:
        """Close the connection."""
        self.is_open = False

    async def book(self, amount: int, *, is_busy: bool = False) -> None:
        """Add an amount to the balance."""
        await asyncio.sleep(0.01)
        if is_busy:
            raise BankBusyError("come again in a moment")
        self.balance += amount
        self.bookings += 1
        if self.bookings == PAYMENTS + 1:
            all_done.set()


bank = Bank()


async def charge(record: Record, attempt: Attempt) -> None:
    """Book a payment. The bank is busy at the first attempt."""
    payment = json.loads(record.value or b"")
    if payment["amount"] <= 0:
        raise Reject(f"nobody pays {payment['amount']}")
    try:
        await bank.book(payment["amount"], is_busy=attempt.number == 1)
    except BankBusyError as error:
        raise Retry(after=0.1) from error


async def refund(record: Record) -> None:
    """Book a refund."""
    await bank.book(-json.loads(record.value or b"")["amount"])


def report(failure: HandlerFailure) -> None:
    """Print a failure. A real program would call `sentry_sdk.capture_exception` here."""
    end = "given up" if failure.retry_after_seconds is None else "tried again"
    print(f"{failure.record.topic}: {failure.error} ({end})")


def stop_when_all_done(worker: Worker) -> None:
    """End this program after all bookings, which a service would not do."""
    all_done.wait()
    worker.stop()


def main() -> None:
    """Start a broker, write payments and a refund, and run a worker until they are booked."""
    with LocalCluster(brokers=1) as cluster:
        servers = cluster.bootstrap_servers
        with Admin(bootstrap_servers=servers) as admin:
            for topic in ("payments", "refunds"):
                admin.create_topic(topic, partitions=2, replication_factor=1)
        with Producer(bootstrap_servers=servers) as producer:
            for amount in (-5, *range(1, PAYMENTS + 1)):
                producer.send("payments", json.dumps({"amount": amount}).encode())
            producer.send("refunds", json.dumps({"amount": 7}).encode())

        worker = Worker(
            ("payments", "refunds"),
            "booking",
            {"payments": charge, "refunds": refund},
            give_up_on=(json.JSONDecodeError, KeyError),
            dead_letter_topic="payments.dead",
            create_dead_letter_topic=True,
            on_startup=bank.connect,
            on_shutdown=bank.disconnect,
            on_failure=report,
            bootstrap_servers=servers,
        )
        threading.Thread(target=stop_when_all_done, args=(worker,), daemon=True).start()
        worker.run()

    print(f"{bank.bookings} bookings, balance {bank.balance}, {'open' if bank.is_open else 'closed'}")


if __name__ == "__main__":
    main()
