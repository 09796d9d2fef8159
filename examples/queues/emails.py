"""Send e-mails: a busy server is tried again, an unknown address becomes a dead letter, and a dead letter is sent after a repair.

Usage: python examples/queues/emails.py [SERVERS]

Prints::

    put 5 mails, 1 of them again
    busy@example.com has its mail, attempt 3
    dead letter for ada@exmaple.com: smtplib.SMTPResponseException: (550, 'no such mailbox')
    dead letter for full@example.com: smtplib.SMTPResponseException: (452, 'mailbox full')
    full@example.com has its mail, attempt 1
    4 mails were sent, 1 dead letter is left
"""

import asyncio
import smtplib
import sys

from raftmq import Admin, Attempt, NewMessage, Queue, Record, Reject, Worker

SERVERS = sys.argv[1] if len(sys.argv) > 1 else "localhost:9400"
TOPIC = "emails"
ADDRESSES = ["ada@exmaple.com", "bob@example.com", "busy@example.com", "dora@example.com", "full@example.com"]


class MailServer:
    """Simulate a mail server: use `smtplib.SMTP.send_message` instead."""

    def __init__(self) -> None:
        self.sent: dict[str, int] = {}
        """The address of each mail that was sent, and the number of the attempt."""
        self.full = {"full@example.com"}
        """Addresses whose mailbox is full."""

    def send(self, address: str, attempt: int) -> None:
        """Send a mail, or raise as `smtplib` does. Codes from 500 are final."""
        if not address.endswith("@example.com"):
            raise smtplib.SMTPResponseException(550, "no such mailbox")
        if address in self.full:
            raise smtplib.SMTPResponseException(452, "mailbox full")
        if address == "busy@example.com" and attempt < 3:
            raise smtplib.SMTPResponseException(421, "try again later")
        self.sent[address] = attempt


server = MailServer()


def send(record: Record, attempt: Attempt) -> None:
    """Send one mail. Any exception but `Reject` gives it back, to be tried again after the topic's back-off."""
    try:
        server.send((record.value or b"").decode(), attempt.number)
    except smtplib.SMTPResponseException as error:
        if error.smtp_code >= 500:
            raise Reject("the server will never take it") from error
        raise


async def wait_until_settled(queue: Queue[bytes]) -> None:
    """Wait until every mail was sent or is dead. A service has no such end."""
    while True:
        stats = await queue.stats()
        if not stats.ready + stats.delayed + stats.leased:
            return
        await asyncio.sleep(0.05)


async def main() -> None:
    """Put mails, send them with a worker, look at the dead letters, and send one of them again."""
    async with Admin(bootstrap_servers=SERVERS) as admin:
        retries = {"attempts.max": 3, "backoff.base.ms": 50, "backoff.factor.percent": 200}
        await admin.create_topic(TOPIC, kind="queue", config=retries)

    worker = Worker(TOPIC, handler=send, bootstrap_servers=SERVERS)
    async with Queue(TOPIC, bootstrap_servers=SERVERS) as queue, asyncio.TaskGroup() as tasks:
        # The id makes a repeated put harmless: the queue knows the mail while it is not finished.
        mails = [NewMessage(address.encode(), id=f"welcome-{address}") for address in ADDRESSES]
        results = await queue.put_many([*mails, mails[0]])
        print(f"put {len(mails)} mails, {sum(result.is_deduplicated for result in results)} of them again")

        tasks.create_task(worker.serve())
        await wait_until_settled(queue)
        print(f"busy@example.com has its mail, attempt {server.sent['busy@example.com']}")
        dead = {message.id: message async for message in queue.browse("dead", with_values=True)}
        for _, message in sorted(dead.items()):
            print(f"dead letter for {(message.value or b'').decode()}: {message.error}")

        server.full.clear()
        await queue.redrive("welcome-full@example.com")
        await wait_until_settled(queue)
        print(f"full@example.com has its mail, attempt {server.sent['full@example.com']}")
        print(f"{len(server.sent)} mails were sent, {(await queue.stats()).dead} dead letter is left")
        worker.stop()


asyncio.run(main())
