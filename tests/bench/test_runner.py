"""Check that rounds are interleaved, the warm-up does not count, and a failing system does not stop the others."""

from functools import partial

from bench.runner import run_interleaved
from bench.systems import System
from bench.workloads import FULL, QUICK, Client, Figure, Scale, Workload


class FakeClient(Client):
    def __init__(self, name: str, done: list[tuple[str, Scale]], topics: list[str], fails_at: int) -> None:
        self.name = name
        self.done = done
        self.topics = topics
        self.fails_at = fails_at

    async def create_topic(self, topic: str, partitions: int) -> None:
        self.topics.append(f"+{topic}")

    async def delete_topic(self, topic: str) -> None:
        self.topics.append(f"-{topic}")


async def work(client: Client, topic: str, scale: Scale, share: float) -> dict[str, float]:
    assert isinstance(client, FakeClient)
    client.done.append((client.name, scale))
    if len(client.done) > client.fails_at:
        raise RuntimeError("no more")
    return {"rate": share * len(client.done)}


WORKLOAD = Workload("work", "work", (Figure("rate", "1/s", True),), work)


class Systems:
    """Two systems that support the workload and one that does not."""

    def __init__(self) -> None:
        self.done: list[tuple[str, Scale]] = []
        self.topics: list[str] = []
        self.fails_at = {"a": 1000, "b": 1000, "c": 1000}
        works = {"a": ["work"], "b": ["work", "other"], "c": ["other"]}
        self.all = [System(name, "1", partial(self.connect, name), frozenset(names)) for name, names in works.items()]

    def connect(self, name: str) -> Client:
        return FakeClient(name, self.done, self.topics, self.fails_at[name])


def test_rounds_are_interleaved_after_a_warm_up_that_does_not_count() -> None:
    systems = Systems()
    samples, failures = run_interleaved(WORKLOAD, systems.all, FULL, 2, lambda text: None)
    assert systems.done == [("a", QUICK), ("b", QUICK), ("a", FULL), ("b", FULL), ("a", FULL), ("b", FULL)]
    assert [(sample.system, sample.round, sample.figures) for sample in samples] == [
        ("a", 1, {"rate": [3.0]}),
        ("b", 1, {"rate": [4.0]}),
        ("a", 2, {"rate": [5.0]}),
        ("b", 2, {"rate": [6.0]}),
    ]
    assert failures == []


def test_each_round_creates_and_deletes_its_own_topic() -> None:
    systems = Systems()
    run_interleaved(WORKLOAD, systems.all, QUICK, 2, lambda text: None)
    made = systems.topics[::2]
    assert len(set(made)) == 4
    assert systems.topics[1::2] == [f"-{topic[1:]}" for topic in made]


def test_a_failing_system_is_reported_and_left_out() -> None:
    systems = Systems()
    systems.fails_at["a"] = 0
    told: list[str] = []
    samples, failures = run_interleaved(WORKLOAD, systems.all, QUICK, 3, told.append)
    assert [sample.system for sample in samples] == ["b", "b", "b"]
    assert [(failure.workload, failure.system, failure.error) for failure in failures] == [
        ("work", "a", "RuntimeError: no more")
    ]
    assert "work, a: failed: no more" in told
