"""Random valid runs of a model broker: the histories that clients would record if everything were right.

Several producers send. Acknowledgements arrive late or never, and sends fail or stay unknown. Readers poll, seek and are reassigned,
and one reader reads everything at the end. The log itself is the truth, so each run is a history without anomalies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from sim.history.events import Event, Partition, Records
from sim.history.recorder import OpenOperation, Recorder

TOPIC = "t"


@dataclass
class ModelRun:
    """One run, which fills `events`."""

    random: Random
    partitions: int = 2
    producers: int = 2
    readers: int = 2
    poll_max: int = 5
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.now = 0
        self.recorder = Recorder(self.events.append, self._clock)
        self.logs: list[list[str]] = [[] for _ in range(self.partitions)]
        self.sent = 0
        self.unanswered: list[tuple[OpenOperation, str, int, int]] = []
        self.positions: dict[str, dict[int, int]] = {}

    def _clock(self) -> int:
        self.now += self.random.randrange(3)
        return self.now

    # ------------------------------------------------------------------------------------------------------- actions

    def send(self) -> None:
        """Send a record. Most are appended immediately, in the order of sending."""
        producer = f"writer-{self.random.randrange(self.producers)}"
        partition = self.random.randrange(self.partitions)
        value = f"v{self.sent}"
        self.sent += 1
        operation = self.recorder.invoke(producer, "send", topic=TOPIC, value=value, producer=producer)
        fate = self.random.random()
        if fate < 0.05:
            operation.fail(topic=TOPIC, value=value, error="NotLeaderError")
        elif fate < 0.1:
            operation.info(topic=TOPIC, value=value, error="DeliveryTimeoutError")
            if self.random.random() < 0.5:
                self.logs[partition].append(value)
        else:
            self.unanswered.append((operation, value, partition, len(self.logs[partition])))
            self.logs[partition].append(value)

    def answer(self) -> None:
        """Let a random acknowledgement arrive."""
        if self.unanswered:
            operation, value, partition, offset = self.unanswered.pop(self.random.randrange(len(self.unanswered)))
            known = offset if self.random.random() < 0.95 else None
            operation.ok(topic=TOPIC, value=value, partition=partition, offset=known)

    def assign(self, reader: str, partitions: list[int]) -> None:
        """Assign partitions to a reader. Partitions that it has already keep their positions."""
        old = self.positions.get(reader, {})
        self.positions[reader] = {partition: old.get(partition, 0) for partition in partitions}
        assignment = [Partition(TOPIC, partition) for partition in partitions]
        operation = self.recorder.invoke(reader, "assign", assignment=assignment, start="earliest")
        operation.ok(assignment=assignment, start="earliest")

    def seek(self, reader: str) -> None:
        """Move a reader to an existing offset."""
        partition = self.random.choice(sorted(self.positions[reader]))
        offset = self.random.randint(0, len(self.logs[partition]))
        operation = self.recorder.invoke(reader, "seek", topic=TOPIC, partition=partition, offset=offset)
        operation.ok(topic=TOPIC, partition=partition, offset=offset)
        self.positions[reader][partition] = offset

    def poll(self, reader: str) -> None:
        """Let a reader receive the next records."""
        operation = self.recorder.invoke(reader, "poll")
        records = []
        for partition, position in self.positions[reader].items():
            values = self.logs[partition][position : position + self.random.randint(1, self.poll_max)]
            if values:
                offsets = list(range(position, position + len(values)))
                records.append(Records(TOPIC, partition, offsets, values))
                self.positions[reader][partition] = position + len(values)
        operation.ok(records=records)

    def read_all(self) -> None:
        """Read everything, in the last phase."""
        reader = "last-reader"
        everything = list(range(self.partitions))
        assignment = [Partition(TOPIC, partition) for partition in everything]
        operation = self.recorder.invoke(reader, "read_all", assignment=assignment)
        self.assign(reader, everything)
        while any(position < len(self.logs[partition]) for partition, position in self.positions[reader].items()):
            self.poll(reader)
        operation.ok(ends=[(TOPIC, partition, len(self.logs[partition])) for partition in everything])

    # ----------------------------------------------------------------------------------------------------------- run

    def run(self, actions: int) -> list[Event]:
        """Do random actions, then answer everything, then do the last reading."""
        names = [f"reader-{number}" for number in range(self.readers)]
        for name in names:
            self.assign(name, list(range(self.partitions)))
        for _ in range(actions):
            reader = self.random.choice(names)
            match self.random.choices(["send", "answer", "poll", "seek", "assign"], [10, 9, 5, 1, 1])[0]:
                case "send":
                    self.send()
                case "answer":
                    self.answer()
                case "poll":
                    self.poll(reader)
                case "seek":
                    self.seek(reader)
                case _:
                    wanted = self.random.sample(range(self.partitions), self.random.randint(1, self.partitions))
                    self.assign(reader, sorted(wanted))
        while self.unanswered:
            self.answer()
        self.read_all()
        return self.events
