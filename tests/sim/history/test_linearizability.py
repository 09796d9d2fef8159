"""The search agrees with a slow twin that tries every order, and handles unknown outcomes."""

from __future__ import annotations

from itertools import combinations, permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.history.anomalies import nonlinearizable
from sim.history.checker import judge
from sim.history.events import Event
from sim.history.linearizability import Call, Linearizable, check_linearizable
from sim.history.recorder import Fields, OpenOperation, Recorder
from sim.history.tables import NEVER, History, TopicOperation
from sim.history.topic_model import State, Topic, is_certain, says_something, state_before, step

TOPIC = "m"


# ---------------------------------------------------------------------------------------------------------------- a twin


def is_explained_by_some_order(calls: list[Call[TopicOperation]], initial: State) -> bool:
    """Try every subset of the operations of unknown outcome in every order, by the definition of linearizability."""
    required = [call for call in calls if call.is_required]
    optional = [call for call in calls if not call.is_required]
    for count in range(len(optional) + 1):
        for chosen in combinations(optional, count):
            for order in permutations([*required, *chosen]):
                if respects_time(order) and explains(order, initial):
                    return True
    return False


def respects_time(order: tuple[Call[TopicOperation], ...]) -> bool:
    for at, later in enumerate(order):
        for earlier in order[
            at + 1 :
        ]:  # it is ordered after the other one, which is wrong if it ended before that began
            is_shown = later.process == earlier.process and earlier.operation.status == "ok"
            may_be_old = later.operation.is_unconfirmed and not is_shown
            if earlier.ended_at < later.invoked_at and not may_be_old:
                return False
    return True


def explains(order: tuple[Call[TopicOperation], ...], state: State) -> bool:
    for call in order:
        is_possible, state = step(state, call.operation)
        if not is_possible:
            return False
    return True


# ---------------------------------------------------------------------------------------------------------- small histories

NAMES = st.sampled_from(
    ["create_topic", "create_topic", "alter_topic", "add_partitions", "delete_topic", "describe_topic"]
)
REFUSALS = {
    "create_topic": "TopicAlreadyExistsError",
    "add_partitions": "InvalidPartitionsError",
}


@st.composite
def small_histories(draw: st.DrawFn) -> list[TopicOperation]:
    """Draw up to five operations of three clients at random times with random answers. Most histories are wrong, but many are not."""
    count = draw(st.integers(1, 5))
    places = draw(st.permutations(range(2 * count)))
    spans = sorted((min(pair), max(pair)) for pair in zip(places[:count], places[count:], strict=True))
    operations = []
    for began, ended in spans:
        name = draw(NAMES)
        status = draw(st.sampled_from(["ok", "ok", "ok", "fail", "info"]))
        operations.append(
            TopicOperation(
                process=draw(st.sampled_from("abc")),
                operation=name,
                topic=TOPIC,
                invoked_at=began,
                partitions=draw(st.integers(1, 2)),
                config={"x": draw(st.sampled_from("12"))} if draw(st.booleans()) else {},
                unset=("x",) if name == "alter_topic" and draw(st.booleans()) else (),
                ended_at=ended,
                status=status,
                error=draw(st.sampled_from([REFUSALS.get(name), "UnknownTopicError", "NotLeaderError"]))
                if status == "fail"
                else None,
                is_unconfirmed=name == "describe_topic" and status == "ok" and draw(st.booleans()),
            )
        )
    return operations


def calls_of(operations: list[TopicOperation]) -> list[Call[TopicOperation]]:
    return [nonlinearizable._call(operation) for operation in operations if says_something(operation)]


def check_against_the_twin(operations: list[TopicOperation]) -> Linearizable:
    calls = calls_of(operations)
    initial = state_before(operations)
    expected = is_explained_by_some_order(calls, initial)
    answer = check_linearizable(calls, initial, step).answer
    assert answer is (Linearizable.YES if expected else Linearizable.NO)
    return answer


@given(small_histories())
def test_the_search_agrees_with_the_slow_twin(operations: list[TopicOperation]) -> None:
    check_against_the_twin(operations)


@pytest.mark.parametrize("is_unconfirmed", [False, True])
def test_the_search_agrees_with_the_slow_twin_on_plausible_histories(is_unconfirmed: bool) -> None:
    """Most of these answers are right, so that both results occur. Otherwise the agreement would prove little."""
    runs = [
        MetadataRun(Random(seed), spoil=True, is_unconfirmed=is_unconfirmed).operations(3 + seed % 3)
        for seed in range(400)
    ]
    answers = [check_against_the_twin(operations) for operations in runs]
    assert min(answers.count(Linearizable.YES), answers.count(Linearizable.NO)) > 30


# ------------------------------------------------------------------------------------------------------------ whole runs


class MetadataRun:
    """Clients that change and describe one topic, some concurrently. A change takes effect between its two events, or never."""

    def __init__(self, random: Random, *, spoil: bool = False, is_unconfirmed: bool = False) -> None:
        self.random = random
        self.spoil = spoil
        self.is_unconfirmed = is_unconfirmed
        self.events: list[Event] = []
        self.now = 0
        self.recorder = Recorder(self.events.append, self._clock)
        self.state: State = None

    def _clock(self) -> int:
        self.now += 1
        return self.now

    def operations(self, count: int) -> list[TopicOperation]:
        return History.of(self.run(count)).topic_operations.get(TOPIC, [])

    def run(self, count: int) -> list[Event]:
        under_way: list[tuple[OpenOperation, str, Fields]] = []
        begun = 0
        while begun < count or under_way:
            if begun < count and (not under_way or (len(under_way) < 3 and self.random.random() < 0.5)):
                under_way.append(self._begin(f"admin-{self.random.randrange(4)}", is_first=begun == 0))
                begun += 1
            else:
                self._end(*under_way.pop(self.random.randrange(len(under_way))))
        return self.events

    def _begin(self, process: str, *, is_first: bool) -> tuple[OpenOperation, str, Fields]:
        name = self.random.choice(["create_topic", "alter_topic", "add_partitions", "delete_topic", "describe_topic"])
        if is_first:
            name = "create_topic"
        fields = Fields(topic=TOPIC)
        if name in ("create_topic", "add_partitions"):
            fields["partitions"] = self.random.randint(1, 6)
        if name == "alter_topic":
            fields["config"] = {"x": str(self.random.randrange(100))}
        return self.recorder.invoke(process, name, **fields), name, fields

    def _end(self, operation: OpenOperation, name: str, fields: Fields) -> None:
        """End an operation, which takes effect now or never."""
        is_unknown = name != "describe_topic" and self.random.random() < 0.1
        if is_unknown and self.random.random() < 0.5:
            operation.info(topic=TOPIC, error="RequestTimedOutError")
            return
        error = self._apply(name, fields)
        if is_unknown:
            operation.info(topic=TOPIC, error="RequestTimedOutError")
        elif error:
            operation.fail(topic=TOPIC, error=error)
        elif name == "describe_topic":
            assert isinstance(self.state, Topic)
            wrong = int(self.spoil and self.random.random() < 0.5)
            operation.ok(
                topic=TOPIC,
                is_unconfirmed=self.is_unconfirmed,
                partitions=self.state.partitions + wrong,
                config=dict(self.state.config),
            )
        else:
            operation.ok(topic=TOPIC)

    def _apply(self, name: str, fields: Fields) -> str | None:
        state = self.state
        if name == "create_topic":
            if state is not None:
                return "TopicAlreadyExistsError"
            self.state = Topic(fields["partitions"], frozenset())
            return None
        if state is None:
            return "UnknownTopicError"
        if name == "delete_topic":
            self.state = None
        elif name == "alter_topic":
            self.state = Topic(state.partitions, frozenset({**dict(state.config), **fields["config"]}.items()))
        elif name == "add_partitions":
            if fields["partitions"] <= state.partitions:
                return "InvalidPartitionsError"
            self.state = Topic(fields["partitions"], state.config)
        return None


@given(st.integers(0, 1 << 32), st.integers(1, 60))
def test_a_valid_run_is_linearizable(seed: int, count: int) -> None:
    judge(MetadataRun(Random(seed)).run(count)).demand_clean()


def test_hundreds_of_operations_on_one_topic_are_decided() -> None:
    verdict = judge(MetadataRun(Random(5)).run(800))
    verdict.demand_clean()
    assert verdict.operation_count == 800


# -------------------------------------------------------------------------------------------------------------- bounds


def change(number: int, status: str) -> TopicOperation:
    name = "create_topic" if number == 0 else "alter_topic"
    ended_at = number * 2 + 1 if status == "ok" else NEVER
    config = {"x": str(number)} if number else {}
    return TopicOperation("a", name, TOPIC, number * 2, 1, config, (), ended_at, status)


def test_too_many_unknown_outcomes_are_undecided() -> None:
    """Each of twenty changes may have happened or not, in any order, and no order explains the last answer."""
    operations = [change(0, "ok"), *(change(number, "info") for number in range(1, 21))]
    operations.append(TopicOperation("b", "describe_topic", TOPIC, 100, 1, {"x": "nothing"}, (), 101, "ok"))
    calls = calls_of(operations)
    assert all(call.is_required == is_certain(call.operation) for call in calls)
    outcome = check_linearizable(calls, None, step, configurations_max=1000)
    assert outcome.answer is Linearizable.UNDECIDED
    assert outcome.configuration_count == 1000


def test_a_history_with_an_undecided_topic_is_not_clean(monkeypatch) -> None:
    monkeypatch.setattr(
        nonlinearizable,
        "check_linearizable",
        lambda calls, initial, step: check_linearizable(calls, initial, step, configurations_max=3),
    )
    verdict = judge(MetadataRun(Random(5)).run(20))
    assert not verdict.is_clean
    assert verdict.undecided[0].startswith(f"{TOPIC}: ")
    assert "undecided: m" in verdict.report()


def test_a_stale_description_is_allowed_if_it_says_so_but_not_older_than_its_own_client_was_shown() -> None:
    """`b` may not know the change, but `a` made it."""
    events: list[Event] = []
    recorder = Recorder(events.append, lambda: len(events))
    recorder.invoke("a", "create_topic", topic=TOPIC, partitions=1).ok(topic=TOPIC)
    recorder.invoke("a", "add_partitions", topic=TOPIC, partitions=2).ok(topic=TOPIC)
    recorder.invoke("b", "describe_topic", topic=TOPIC).ok(topic=TOPIC, partitions=1, is_unconfirmed=True)
    judge(events).demand_clean()
    recorder.invoke("a", "describe_topic", topic=TOPIC).ok(topic=TOPIC, partitions=1, is_unconfirmed=True)
    assert judge(events).counts == {"nonlinearizable": 1}


def _described(partitions: int, *, is_unconfirmed: bool) -> dict[str, int]:
    """Judge a description that follows the refusal of a change, which is no revision to its client."""
    events: list[Event] = []
    recorder = Recorder(events.append, lambda: len(events))
    recorder.invoke("a", "create_topic", topic=TOPIC, partitions=1).ok(topic=TOPIC)
    recorder.invoke("a", "add_partitions", topic=TOPIC, partitions=2).ok(topic=TOPIC)
    recorder.invoke("b", "add_partitions", topic=TOPIC, partitions=2).fail(topic=TOPIC, error="InvalidPartitionsError")
    described = recorder.invoke("b", "describe_topic", topic=TOPIC)
    described.ok(topic=TOPIC, partitions=partitions, is_unconfirmed=is_unconfirmed)
    return judge(events).counts


def test_a_stale_description_may_be_older_than_a_refusal_to_its_client() -> None:
    """A refusal names no revision that the client could ask the next broker for."""
    assert _described(1, is_unconfirmed=True) == {}


def test_a_confirmed_description_is_never_older_than_what_happened_before_it() -> None:
    assert _described(1, is_unconfirmed=False) == {"nonlinearizable": 1}


def test_a_stale_description_is_a_state_that_existed() -> None:
    assert _described(3, is_unconfirmed=True) == {"nonlinearizable": 1}
