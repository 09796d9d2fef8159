"""Visit every state that a scenario can reach, breadth first, and check the rules after every event.

Requests may arrive at any time, or never. Each kind of other event has a budget, from which each event takes one. A state is visited again only with
more of a budget left. Deviation: replies arrive immediately, unless one of the budget of `late` lets all replies to one event arrive at any
time. Without this, few scenarios would come to an end.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from raftmq.raft.membership import Membership, MembershipChange
from raftmq.raft.messages import (
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    Message,
    ReadIndexResponse,
    VoteRequest,
    VoteResponse,
)
from raftmq.raft.progress import ProgressState
from raftmq.raft.ready import Role
from raftmq.raft.settings import RaftSettings
from raftmq.types import ReplicaId

from sim.core.cluster import PRODUCT, Build
from sim.core.describe import describe_message
from sim.core.disk import SimDisk
from sim.core.explore.node import ELECTION_TICKS, Event, Node, Surroundings
from sim.core.explore.rules import History, View, check_kept, check_pair, check_view, on_commit, on_leader
from sim.core.invariants.violation import InvariantViolation, demand

SETTLE_STEPS_MAX = 10_000
RECOVERY_ROUNDS_MAX = 300

T = TypeVar("T")

_REPLIES = (VoteResponse, AppendResponse, HeartbeatResponse, ReadIndexResponse)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A start, and how often each kind of event may happen."""

    budget: Mapping[str, int]
    prelude: Sequence[tuple[int, Event, tuple[int, ...]]] = ()
    """(replica, event, replicas that are cut off): before the search, each with everything that follows."""
    voters: int = 3
    others: int = 0
    """Replicas without a log, for changes of membership."""
    dead: tuple[int, ...] = ()
    """Replicas that are lost after the prelude."""
    changes: tuple[MembershipChange, ...] = ()
    has_heartbeats: bool = False
    """False: all are lost. They double the messages, and matter little where nobody reads or lags."""
    is_deaf: bool = True
    """Whether leaders and candidates of an earlier term never hear of the present one from those who ignore them."""
    settings: RaftSettings = field(default_factory=RaftSettings)


class State(NamedTuple):
    """A state of the group: numbers of the states of its parts."""

    nodes: tuple[int, ...]
    net: int
    history: int
    budget: tuple[int, ...]


class _Step(NamedTuple):
    """The effect of an event on one replica."""

    node: int
    sent: tuple[int, ...] = ()
    reads: tuple[tuple[int, int], ...] = ()
    commits: tuple[tuple[int, bool, Membership], ...] = ()
    error: Exception | None = None


class _Table(Generic[T]):
    """Numbers values, in the order in which they were first seen."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, value: T, key: Hashable) -> int:
        """Return the number of the value with this key."""
        number = self._numbers.setdefault(key, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number


class Explorer:
    """The states of one scenario that were reached so far."""

    def __init__(self, scenario: Scenario, build: Build = PRODUCT) -> None:
        self.scenario = scenario
        self.states: list[State] = []
        self.error: Exception | None = None
        """The broken rule, or None."""
        self.trace: list[str] = []
        """The events that lead to it."""
        self.is_complete = False
        self._kinds = tuple(scenario.budget)
        self._world = Surroundings(build, scenario.settings)
        self._node_class: type[Node] = type("ExploredReplica", (Node, build.replica), {})
        self._disk_class: type[SimDisk] = build.disk
        self._count = scenario.voters + scenario.others
        self._nodes = _Table[Node]()
        self._views: list[View] = []
        """The view of each of `_nodes`."""
        self._messages = _Table[Message]()
        self._nets = _Table[tuple[tuple[int, ...], ...]]()
        """The messages under way to each replica."""
        self._histories = _Table[History]()
        self._steps: dict[tuple[int, Event], _Step] = {}
        self._checked: set[tuple[int, int]] = set()
        self._compared: set[tuple[int, int]] = set()
        self._living: dict[tuple[int, tuple[int, ...]], tuple[int, ...]] = {}
        self._seen: dict[tuple[tuple[int, ...], int, int], tuple[tuple[int, ...], ...]] = {}
        """The budgets with which everything else of a state was reached."""
        self._parents = array("q")
        self._events: list[tuple[int, Event]] = []

    # ---------------------------------------------------------------------------------------------------- one replica

    def _number_node(self, node: Node) -> int:
        number = self._nodes.number(node, node.key())
        if number == len(self._views):
            self._views.append(View(node))
        return number

    def _number_message(self, message: Message) -> int:
        return self._messages.number(message, (message, isinstance(message, InstallSnapshot) and message.data))

    def _number_net(self, net: tuple[tuple[int, ...], ...]) -> int:
        return self._nets.number(net, net)

    def _step(self, node: int, event: Event) -> _Step:
        """Return the effect of an event, which is the same in every state of the group."""
        step = self._steps.get((node, event))
        if step is None:
            step = self._steps[node, event] = self._run(node, event)
        return step

    def _run(self, node: int, event: Event) -> _Step:
        twin = self._nodes.values[node].copy()
        world = self._world
        world.sent.clear()
        world.confirmed.taken.clear()
        try:
            twin.run(("receive", self._messages.values[event[1]]) if event[0] == "receive" else event)  # type: ignore[call-overload]
            number = self._number_node(twin)
        except Exception as error:  # noqa: BLE001 - every error of a core is a finding
            return _Step(node, error=error)
        is_lost = 0 if self.scenario.has_heartbeats else Heartbeat
        sent = {self._number_message(message) for message in world.sent if type(message) is not is_lost}
        return _Step(number, tuple(sorted(sent)), tuple(world.confirmed.taken), tuple(twin.commits))

    # ------------------------------------------------------------------------------------------------- the whole group

    def _follow(self, state: State, place: int, event: Event, step: _Step, replies: deque[int] | None) -> State:
        """Return the state after an effect on one replica. The replies go to `replies`, or are under way if that is None."""
        if step.error is not None:
            raise step.error
        nodes = (*state.nodes[:place], step.node, *state.nodes[place + 1 :])
        history = self._judge(state, place, step, nodes, event)
        boxes = list(self._nets.values[state.net])
        for number in step.sent:
            message = self._messages.values[number]
            target = int(message.target) - 1
            if int(message.target) in self.scenario.dead:
                continue
            if replies is not None and isinstance(message, _REPLIES):
                replies.append(number)
            elif number not in boxes[target]:
                boxes[target] = tuple(sorted((*boxes[target], number)))
        net = self._number_net(tuple(map(self._without_dead, nodes, boxes)))
        return State(nodes, net, history, state.budget)

    def _without_dead(self, node: int, box: tuple[int, ...]) -> tuple[int, ...]:
        living = self._living.get((node, box))
        if living is None:
            view, is_deaf = self._views[node], self.scenario.is_deaf
            living = tuple([number for number in box if not is_dead(self._messages.values[number], view, is_deaf)])
            self._living[node, box] = living
        return living

    def _judge(self, state: State, place: int, step: _Step, nodes: tuple[int, ...], event: Event) -> int:
        """Check the state after an effect, and return the number of its history."""
        before = history = self._histories.values[state.history]
        view, old = self._views[step.node], self._views[state.nodes[place]]
        if step.commits or view.role is Role.LEADER:
            views = [self._views[node] for node in nodes]
            if view.role is Role.LEADER:
                history = on_leader(history, view, views)
            for commit in step.commits:
                history = on_commit(history, view, views, *commit)
        if event[0] == "read":
            history = history._replace(reads=(*history.reads, (int(event[1]), history.commit_index)))  # type: ignore[call-overload]
        for request, index in step.reads:
            floor = dict(history.reads)[request]
            demand(index >= floor, "LinearizableRead", f"read {request} sees {index}, {floor} was committed when asked")
        number = state.history if history is before else self._histories.number(history, history)
        for node in nodes if history is not before else (step.node,):
            if (node, number) not in self._checked:
                check_view(self._views[node], history)
                self._checked.add((node, number))
        for node in nodes:
            if node != step.node and (node, step.node) not in self._compared:
                check_pair(self._views[node], view)
                self._compared.add((node, step.node))
        if history is not before or view.disk_log != old.disk_log:
            check_kept(history, [self._views[node] for node in nodes])
        return number

    def _after(self, state: State, place: int, event: Event, step: _Step) -> Iterator[State]:
        """Yield the state after an event whose replies arrive immediately, and that after one whose replies are late."""
        late = self._kinds.index("late") if "late" in self._kinds else -1
        if (
            late >= 0
            and state.budget[late]
            and any(isinstance(self._messages.values[one], _REPLIES) for one in step.sent)
        ):
            yield _spend(self._follow(state, place, event, step, None), late)
        replies: deque[int] = deque()
        following = self._follow(state, place, event, step, replies)
        while replies:
            event = ("receive", replies.popleft())
            place = int(self._messages.values[event[1]].target) - 1
            following = self._follow(following, place, event, self._step(following.nodes[place], event), replies)
        yield following

    def _choices(self, state: State) -> Iterator[tuple[int, Event, State]]:
        """Yield (place, event, state with the event taken from it) for everything that may happen."""
        repeat = self._kinds.index("repeat") if "repeat" in self._kinds else -1
        for place, number in enumerate(state.nodes):
            if place + 1 in self.scenario.dead:
                continue
            boxes = self._nets.values[state.net]
            for message in boxes[place]:
                box = tuple([one for one in boxes[place] if one != message])
                net = self._number_net((*boxes[:place], box, *boxes[place + 1 :]))
                yield place, ("receive", message), state._replace(net=net)
                if repeat >= 0 and state.budget[repeat]:
                    yield place, ("receive", message), _spend(state, repeat)
            node = self._nodes.values[number]
            if node.disk.pending:
                yield place, ("written",), state
            if node._applying:
                yield place, ("applied",), state
            for slot, left in enumerate(state.budget):
                for event in self._variants(self._kinds[slot], node, left) if left else ():
                    yield place, event, _spend(state, slot)

    def _variants(self, kind: str, node: Node, left: int) -> Iterator[Event]:
        is_leader = node.running.role is Role.LEADER
        match kind:
            case "timeout" | "campaign" | "forget" if not is_leader:
                yield ("tick", ELECTION_TICKS) if kind == "timeout" else (kind,)
            case "check" | "beat" if is_leader:
                yield ("tick", ELECTION_TICKS if kind == "check" else 1)
            case "slow_disk" | "slow_apply" if kind[5:] not in node.slow:
                yield ("slow", kind[5:])
            case "crash":
                yield from ((kind, completed) for completed in range(len(node.disk.pending) + 1))
            case "propose" if is_leader:
                yield (kind, b"%d" % left)
            case "change" if is_leader:
                yield from ((kind, change) for change in self.scenario.changes)
            case "transfer" if is_leader:
                yield from ((kind, int(voter)) for voter in node.running.membership.voters)
            case "read":
                yield (kind, left)
            case "compact":
                yield (kind,)
            case "snapshot_lost" if is_leader:
                yield from ((kind, int(peer)) for peer in node.running.progress)

    # ------------------------------------------------------------------------------------------------------ the search

    def explore(self, states_max: int) -> None:
        """Visit states until all are visited, a rule is broken, or there are `states_max`."""
        self._add(self._start(), -1, 0, ())
        for at, state in enumerate(self.states):  # grows while it is read
            for place, event, taken in self._choices(state):
                try:
                    for following in self._after(taken, place, event, self._step(state.nodes[place], event)):
                        self._add(following, at, place, event)
                except Exception as error:  # noqa: BLE001 - every error of a core is a finding
                    self.error, self.trace = error, [*self.path(at), self._describe(place, event)]
                    return
            if len(self.states) >= states_max:
                return
        self.is_complete = True

    def _add(self, state: State, parent: int, place: int, event: Event) -> None:
        known = self._seen.get(state[:3], ())
        if any(all(map(int.__ge__, budget, state.budget)) for budget in known):
            return
        self._seen[state[:3]] = (*known, state.budget)
        self.states.append(state)
        self._parents.append(parent)
        self._events.append((place, event))

    def path(self, at: int) -> list[str]:
        """Return the events that lead to a state."""
        told: list[str] = []
        while at > 0:
            told.append(self._describe(*self._events[at]))
            at = self._parents[at]
        return told[::-1]

    def _describe(self, place: int, event: Event) -> str:
        if event[0] == "receive":
            return f"r{place + 1} receives {describe_message(self._messages.values[event[1]])}"  # type: ignore[call-overload]
        return f"r{place + 1} " + " ".join(map(str, event))

    def _start(self) -> State:
        scenario = self.scenario
        voters = Membership(tuple(ReplicaId(number) for number in range(1, scenario.voters + 1)))
        disks = [self._disk_class(voters if number < scenario.voters else None) for number in range(self._count)]
        nodes = [self._node_class(self._world, ReplicaId(number), disk) for number, disk in enumerate(disks, 1)]
        history = History()
        for place, event, cut_off in scenario.prelude:
            nodes[place - 1].run(event)
            self._settle(nodes, cut_off)
            views = [View(node) for node in nodes]
            for node, view in sorted(zip(nodes, views, strict=True), key=lambda pair: pair[1].role is not Role.LEADER):
                if view.role is Role.LEADER:
                    history = on_leader(history, view, views)
                for commit in node.commits:
                    history = on_commit(history, view, views, *commit)
                node.commits = []
        net = self._number_net(((),) * self._count)
        budget = tuple(scenario.budget.values())
        return State(tuple(map(self._number_node, nodes)), net, self._histories.number(history, history), budget)

    def _settle(self, nodes: Sequence[Node], cut_off: Sequence[int]) -> None:
        """Finish all writes and applies, and deliver all messages in order, until nothing is left."""
        sent = self._world.sent
        for _ in range(SETTLE_STEPS_MAX):
            busy = next((node for node in nodes if node.disk.pending or node._applying), None)
            if busy is not None:
                busy.run(("written",) if busy.disk.pending else ("applied",))
            elif sent:
                message = sent.pop(0)
                if not {int(message.source), int(message.target)}.intersection(cut_off):
                    nodes[int(message.target) - 1].run(("receive", message))
            else:
                return
        raise InvariantViolation("Settles", "messages without end")

    def recover(self, state: State) -> int | None:
        """Return after how many rounds without faults a new entry is on all living members, or None if it never is.

        All messages under way are lost. In a round, the replicas tick one after another, and everything that follows is done.
        """
        dead = self.scenario.dead
        nodes = [self._nodes.values[number].copy() for number in state.nodes]
        self._world.sent.clear()
        living = [node for node in nodes if node.replica_id not in dead]
        for node in living:
            for peer, progress in node.running.progress.items():
                if progress.state is ProgressState.SNAPSHOT:
                    node.run(("snapshot_lost", int(peer)))  # the transport reports the end of every stream
        term = last_index = 0
        for count in range(1, RECOVERY_ROUNDS_MAX + 1):
            for node in living:
                node.run(("tick", ELECTION_TICKS // 10))
                self._settle(nodes, dead)
            leaders = [node for node in living if node.running.is_confirmed_leader]
            leader = max(leaders, key=lambda node: node.running.term, default=None)
            if leader is not None and leader.running.term > term:
                before = leader.running.last_index
                leader.run(("propose", b"new"))
                self._settle(nodes, dead)
                if leader.running.last_index > before:  # proposals are closed while a transfer runs
                    term, last_index = leader.running.term, before + 1
            if leader is not None and leader.running.term == term and not leader.running.membership.auto_leave:
                members = [node for node in living if node.replica_id in leader.running.progress]
                if all(node.running.applied_index == leader.running.applied_index >= last_index for node in members):
                    return count
        return None


def is_dead(message: Message, view: View, is_deaf: bool) -> bool:
    """Return whether a message can have no effect on a replica, now or after a crash: of an earlier term, or for an ended campaign.

    Leaders' messages and requests for pre-votes of an earlier term are answered. Vote messages may tell of a commit.
    """
    is_ended = isinstance(message, VoteResponse) and not message.is_pre_vote and view.role is not Role.CANDIDATE
    if message.term > view.hard_state.term or (message.term == view.hard_state.term and not is_ended):
        return False
    if isinstance(message, VoteRequest | VoteResponse):
        is_answered = isinstance(message, VoteRequest) and message.is_pre_vote and not is_deaf
        return not is_answered and message.commit_index <= view.hard_state.commit_index
    return is_deaf or not message.is_from_leader


def _spend(state: State, slot: int) -> State:
    budget = state.budget
    return state._replace(budget=(*budget[:slot], budget[slot] - 1, *budget[slot + 1 :]))
