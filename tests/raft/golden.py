"""Runs golden scripts: commands for a few cores, `----`, and their expected output.

A script consists of blocks separated by blank lines: comments (`#`), one command per line, `----`, output. Nothing happens
without a command: only commands deliver messages, complete writes and apply entries. Election timeouts are the minimum
(the generator always draws 0), so that E ticks make a campaign due.

Commands (ids are replica ids, and `name=value` arguments are optional):

    new-cluster 1,2,3 learners=4 election=10 append_bytes=… inflight=… inflight_bytes=…    create a group with this membership
    add-replica 4                      create an empty replica, which knows nothing until a snapshot
    tick 1 10                          do 10 ticks and print the actions that are due
    campaign 1 · forget-leader 1 · step-down 1 · confirm 1
    propose 1 text [count=3] · propose-membership 1 voter4 learner5 remove3 [explicit] · propose-membership 1 leave
    read-index 1 7 · transfer 1 2 · unreachable 1 2 · report-snapshot 1 2 sent|failed
    heartbeat 1                        put the heartbeats of take_heartbeats() onto the wire
    ready 1 [hold]                     take one Ready: messages go onto the wire, append and apply into their queues
    append-done 1 [2]                  make the oldest append (or two) durable, send its responses, and tell the core
    write-done 1 [2] · tell 1 [2]      the same in two steps: first durability and responses, then the core is told
    apply 1                            apply the oldest part
    deliver [from=1] [to=2] [kind=Append] [count=1]     deliver the matching messages on the wire
    drop [from=1] [to=2] [kind=Append] [count=1]        lose the matching messages
    wire                               print the messages on the wire
    stabilize [1 2] [lose=3,4]         run these nodes (or all) until nothing is left to do, and lose messages to `lose`
    quiet COMMAND                      do COMMAND, but print only `ok`
    compact 1 9 · crash 1 · restart 1
    status [1 2] · log 1 · progress 1
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from raftmq.errors import InvariantError
from raftmq.raft.core import RaftCore
from raftmq.raft.entry import Entry, EntryHeader, EntryKind, Proposal
from raftmq.raft.membership import Membership, MembershipChange, MembershipOp
from raftmq.raft.messages import Heartbeat, InstallSnapshot, Message, SnapshotMeta
from raftmq.raft.ready import Appended, AppendWork, Ready, Refused
from raftmq.raft.settings import RaftSettings
from raftmq.types import LogIndex, ReplicaId

from sim.core.describe import (
    describe_entries,
    describe_membership,
    describe_message,
    describe_meta,
    message_name,
)
from sim.core.disk import AppendJob, CompactionJob, DerivedState, SimDisk
from sim.core.state_machine import MachineState, applied

ROUNDS_MAX = 200
SETTINGS = {
    "election": "election_ticks",
    "append_bytes": "append_bytes_max",
    "inflight": "inflight_appends_max",
    "inflight_bytes": "inflight_bytes_max",
    "uncommitted_bytes": "uncommitted_bytes_max",
}


class Least:
    """A generator that always draws the least."""

    def randrange(self, _stop: int, /) -> int:
        return 0


class Node:
    """A core with its queues. The disk is the simulator's."""

    def __init__(self, replica_id: ReplicaId, disk: SimDisk, settings: RaftSettings) -> None:
        self.replica_id = replica_id
        self.disk = disk
        self.settings = settings
        self.start()

    def start(self) -> None:
        self.core = RaftCore(self.replica_id, self.disk.restored(), self, Least(), self.settings)
        self.core.snapshot_meta = self.offer
        self.machine = self.disk.state.machine
        self.untold: deque[AppendWork] = deque()
        self.applies: deque[tuple[Entry, ...]] = deque()
        self.offered: dict[int, MachineState] = {}
        self.is_installing = False

    def entries(self, first: LogIndex, last: LogIndex, bytes_max: int) -> tuple[Entry, ...] | None:
        return self.disk.read(first, last, bytes_max)

    def header(self, index: LogIndex) -> EntryHeader:
        return self.disk.header(index)

    def offer(self) -> SnapshotMeta:
        self.offered[self.machine.index] = self.machine
        return SnapshotMeta(self.disk.log.position, LogIndex(self.machine.index), self.core.membership)

    def write(self, work: AppendWork) -> None:
        self.is_installing |= work.snapshot is not None
        state = None if self.is_installing else DerivedState(self.machine, self.core.membership)
        self.disk.submit(AppendJob(work, state))

    def write_done(self) -> AppendWork:
        job = self.disk.complete()
        assert isinstance(job, AppendJob)
        if job.work.snapshot is not None:
            self.is_installing = False
            self.machine = self.disk.state.machine
        self.untold.append(job.work)
        return job.work

    def tell(self) -> AppendWork:
        work = self.untold.popleft()
        self.core.append_done(work.token)
        return work

    def apply(self) -> tuple[Entry, ...]:
        entries = self.applies.popleft()
        for entry in entries:
            if entry.index > self.machine.index:
                self.machine = applied(self.machine, entry)
        self.core.apply_done(entries[-1].index)
        return entries


class Script:
    """The state of one script."""

    def __init__(self) -> None:
        self.nodes: dict[ReplicaId, Node] = {}
        self.wire: list[Message] = []
        self.settings = RaftSettings(election_ticks=10)

    # ------------------------------------------------------------------------------------------------ running

    def run(self, line: str) -> list[str]:
        """Run one command and return its output."""
        name, *words = line.split()
        if name == "quiet":
            output = self.run(" ".join(words))
            return ["ok"] if not any(text.startswith("error") for text in output) else output
        options = dict(word.split("=", 1) for word in words if "=" in word)
        arguments = [word for word in words if "=" not in word]
        command: Callable[[list[str], dict[str, str]], Iterator[str]] = getattr(self, "do_" + name.replace("-", "_"))
        output = []
        try:
            output.extend(command(arguments, options))
        except InvariantError as error:
            output.append(f"error: {error}")
        return output or ["ok"]

    def node(self, word: str) -> Node:
        return self.nodes[ReplicaId(int(word))]

    def chosen(self, words: list[str]) -> list[Node]:
        return [self.node(word) for word in words] if words else list(self.nodes.values())

    # ------------------------------------------------------------------------------------------------ building

    def do_new_cluster(self, arguments: list[str], options: dict[str, str]) -> Iterator[str]:
        changed = {SETTINGS[name]: int(value) for name, value in options.items() if name in SETTINGS}
        self.settings = replace(self.settings, **changed)
        membership = Membership(parse_ids(arguments[0]), parse_ids(options.get("learners", "")))
        for replica_id in (*membership.voters, *membership.learners):
            self.nodes[replica_id] = Node(replica_id, SimDisk(membership), self.settings)
        yield from ()

    def do_add_replica(self, arguments: list[str], _options: dict[str, str]) -> Iterator[str]:
        replica_id = ReplicaId(int(arguments[0]))
        self.nodes[replica_id] = Node(replica_id, SimDisk(None), self.settings)
        yield from ()

    # -------------------------------------------------------------------------------------------------- inputs

    def do_tick(self, arguments: list[str], _options: dict[str, str]) -> Iterator[str]:
        core = self.node(arguments[0]).core
        for _ in range(int(arguments[1]) if len(arguments) > 1 else 1):
            core.tick()
        if core.campaign_due:
            yield "campaign due"
        if core.heartbeat_due:
            yield "heartbeat due"

    def do_campaign(self, arguments: list[str], _options: dict[str, str]) -> Iterator[str]:
        self.node(arguments[0]).core.campaign()
        yield from ()

    def do_forget_leader(self, arguments: list[str], _options: dict[str, str]) -> Iterator[str]:
        self.node(arguments[0]).core.forget_leader()
        yield from ()

    def do_step_down(self, arguments: list[str], _options: dict[str, str]) -> Iterator[str]:
        self.node(arguments[0]).core.step_down()
        yield from ()

    def do_confirm(self, arguments: list[str], _options: dict[str, str]) -> Iterator[str]:
        core = self.node(arguments[0]).core
        core.require_confirmation()
        yield f"confirmed leader: {core.is_confirmed_leader}"

    def do_propose(self, arguments: list[str], options: dict[str, str]) -> Iterator[str]:
        count = int(options.get("count", "1"))
        proposal = Proposal(EntryKind.DATA, arguments[1].encode(), count)
        yield describe_result(self.node(arguments[0]).core.propose([proposal], now_ms=0))

    def do_propose_membership(self, arguments: list[str], _options: dict[str, str]) -> Iterator[str]:
        operations = {
            "voter": MembershipOp.ADD_VOTER,
            "learner": MembershipOp.ADD_LEARNER,
            "remove": MembershipOp.REMOVE,
        }
        steps = []
        for word in arguments[1:]:
            for prefix, op in operations.items():
                if word.startswith(prefix):
                    steps.append((op, ReplicaId(int(word.removeprefix(prefix)))))
        change = MembershipChange(tuple(steps), is_explicit="explicit" in arguments)
        yield describe_result(self.node(arguments[0]).core.propose_membership(change, now_ms=0))

    def do_read_index(self, arguments: list[str], _options: dict[str, str]) -> Iterator[str]:
        self.node(arguments[0]).core.read_index(int(arguments[1]))
        yield from ()

    def do_transfer(self, arguments: list[str], _options: dict[str, str]) -> Iterator[str]:
        refused = self.node(arguments[0]).core.transfer_leader(ReplicaId(int(arguments[1])))
        if refused is not None:
            yield describe_result(refused)

    def do_unreachable(self, arguments: list[str], _options: dict[str, str]) -> Iterator[str]:
        self.node(arguments[0]).core.report_unreachable(ReplicaId(int(arguments[1])))
        yield from ()

    def do_report_snapshot(self, arguments: list[str], _options: dict[str, str]) -> Iterator[str]:
        self.node(arguments[0]).core.report_snapshot(ReplicaId(int(arguments[1])), arguments[2] == "sent")
        yield from ()

    def do_compact(self, arguments: list[str], _options: dict[str, str]) -> Iterator[str]:
        node = self.node(arguments[0])
        position = node.disk.log.position_at(int(arguments[1]))
        assert not node.disk.pending, "compact while something is being written"
        node.disk.submit(CompactionJob(position, DerivedState(node.machine, node.core.membership)))
        node.disk.complete()
        node.core.compacted(position)
        yield f"log {node.core.first_index}..{node.core.last_index}"

    def do_crash(self, arguments: list[str], _options: dict[str, str]) -> Iterator[str]:
        """Lose everything that is not durable, and all messages on the wire to the node. It must not be used until `restart`."""
        node = self.node(arguments[0])
        node.disk.crash(completed=0)
        self.wire = [message for message in self.wire if message.target != node.replica_id]
        yield from ()

    def do_restart(self, arguments: list[str], options: dict[str, str]) -> Iterator[str]:
        yield from self.do_crash(arguments, options)
        self.node(arguments[0]).start()
        yield from self.do_status(arguments, {})

    # ------------------------------------------------------------------------------------------------- outputs

    def do_heartbeat(self, arguments: list[str], _options: dict[str, str]) -> Iterator[str]:
        core = self.node(arguments[0]).core
        for target, commit_index, read_counter in core.take_heartbeats():
            heartbeat = Heartbeat(core.replica_id, target, core.term, commit_index, read_counter)
            self.wire.append(heartbeat)
            yield f"send {describe_message(heartbeat)}"

    def do_ready(self, arguments: list[str], _options: dict[str, str]) -> Iterator[str]:
        node = self.node(arguments[0])
        with_append = "hold" not in arguments
        if node.core.has_ready(with_append):
            ready = node.core.ready(with_append)
            yield from describe_ready(ready)
            self.wire.extend(attach(node, message) for message in ready.messages)
            if ready.append is not None:
                node.write(ready.append)
            if ready.apply:
                node.applies.append(ready.apply)

    def do_append_done(self, arguments: list[str], options: dict[str, str]) -> Iterator[str]:
        for _ in range(int(arguments[1]) if len(arguments) > 1 else 1):
            yield from self.do_write_done(arguments[:1], options)
            self.node(arguments[0]).tell()

    def do_write_done(self, arguments: list[str], _options: dict[str, str]) -> Iterator[str]:
        node = self.node(arguments[0])
        for _ in range(int(arguments[1]) if len(arguments) > 1 else 1):
            work = node.write_done()
            yield f"durable #{work.token.sequence}"
            for message in work.responses:
                yield f"  send {describe_message(message)}"
            self.wire.extend(work.responses)

    def do_tell(self, arguments: list[str], _options: dict[str, str]) -> Iterator[str]:
        for _ in range(int(arguments[1]) if len(arguments) > 1 else 1):
            yield f"told #{self.node(arguments[0]).tell().token.sequence}"

    def do_apply(self, arguments: list[str], _options: dict[str, str]) -> Iterator[str]:
        node = self.node(arguments[0])
        before = node.core.membership
        entries = node.apply()
        yield f"applied {entries[0].index}..{entries[-1].index}"
        if node.core.membership != before:
            yield f"membership {describe_membership(node.core.membership)}"

    def do_wire(self, _arguments: list[str], _options: dict[str, str]) -> Iterator[str]:
        for message in self.wire:
            yield describe_message(message)

    def take(self, options: dict[str, str]) -> list[Message]:
        """Take the matching messages from the wire."""
        taken: list[Message] = []
        for message in self.wire:
            fits = (
                options.get("from", str(message.source)) == str(message.source)
                and options.get("to", str(message.target)) == str(message.target)
                and options.get("kind", message_name(message)) == message_name(message)
                and len(taken) < int(options.get("count", "1000"))
            )
            if fits:
                taken.append(message)
        self.wire = [message for message in self.wire if not any(message is one for one in taken)]
        return taken

    def do_deliver(self, _arguments: list[str], options: dict[str, str]) -> Iterator[str]:
        for message in self.take(options):
            yield describe_message(message)
            self.nodes[message.target].core.step(message)

    def do_drop(self, _arguments: list[str], options: dict[str, str]) -> Iterator[str]:
        for message in self.take(options):
            yield "lost " + describe_message(message)

    def do_stabilize(self, arguments: list[str], options: dict[str, str]) -> Iterator[str]:
        nodes = self.chosen(arguments)
        lost = parse_ids(options.get("lose", ""))
        nodes = [node for node in nodes if node.replica_id not in lost]
        for _ in range(ROUNDS_MAX):
            is_busy = False
            for node in nodes:
                lines = list(self.advance(node))
                yield from lines
                is_busy |= bool(lines)
            for replica_id in lost:
                self.take({"to": str(replica_id)})
            for node in nodes:
                for message in self.take({"to": str(node.replica_id)}):
                    is_busy = True
                    yield describe_message(message)
                    node.core.step(message)
            if not is_busy:
                return
        yield "error: never stable"

    def advance(self, node: Node) -> Iterator[str]:
        """Do once everything that one node can do by itself."""
        word = str(node.replica_id)
        if node.core.heartbeat_due:
            yield from self.indented(f"{word} heartbeat", self.do_heartbeat([word], {}))
        while node.core.has_ready():
            yield from self.indented(f"{word} ready", self.do_ready([word], {}))
        while node.disk.pending:
            yield from self.indented(f"{word} append-done", self.do_append_done([word], {}))
        while node.applies:
            yield from self.indented(f"{word} apply", self.do_apply([word], {}))

    def indented(self, title: str, lines: Iterator[str]) -> Iterator[str]:
        yield f"> {title}"
        for line in lines:
            yield "  " + line

    # -------------------------------------------------------------------------------------------------- looking

    def do_status(self, arguments: list[str], _options: dict[str, str]) -> Iterator[str]:
        for node in self.chosen(arguments):
            core = node.core
            floor = f" floor={core.state_floor}" if core.applied_index < core.state_floor else ""
            yield (
                f"{core.replica_id}: {core.role.value} term={core.term} vote={core.vote} leader={core.leader_id} "
                f"log={core.first_index}..{core.last_index} durable={core.log.durable_index} commit={core.commit_index} applied={core.applied_index}"
                f"{floor} {describe_membership(core.membership)}"
            )

    def do_log(self, arguments: list[str], _options: dict[str, str]) -> Iterator[str]:
        log = self.node(arguments[0]).disk.log
        yield f"after {log.position.term}/{log.position.index} @{log.position.next_offset}"
        for entry in log.entries:
            yield describe_entries([entry])[1:-1]

    def do_progress(self, arguments: list[str], _options: dict[str, str]) -> Iterator[str]:
        core = self.node(arguments[0]).core
        for peer, progress in core.progress.items():
            text = f"{peer}: {progress.state.value} match={progress.match_index} next={progress.next_index}"
            if progress.pending_snapshot:
                text += f" snapshot={progress.pending_snapshot}"
            if progress.is_paused:
                text += " paused"
            if len(progress.inflights):
                text += f" inflight={len(progress.inflights)}"
            if not progress.is_recently_active:
                text += " inactive"
            yield text


# ---------------------------------------------------------------------------------------------------------------- texts


def parse_ids(text: str) -> tuple[ReplicaId, ...]:
    return tuple(ReplicaId(int(word)) for word in text.split(",") if word)


def attach(node: Node, message: Message) -> Message:
    """Attach the state to a snapshot message, as the shell does."""
    if isinstance(message, InstallSnapshot):
        return replace(message, data=node.offered[message.meta.state_index])
    return message


def describe_result(result: Appended | Refused) -> str:
    if isinstance(result, Appended):
        return "appended " + describe_entries(result.entries)
    return f"refused: {result.reason.value}, leader {result.leader_id}"


def describe_ready(ready: Ready) -> Iterator[str]:
    if ready.role_change is not None:
        change = ready.role_change
        yield f"role {change.role.value} term={change.term} leader={change.leader_id}"
    for message in ready.messages:
        yield f"send {describe_message(message)}"
    if ready.append is not None:
        yield from describe_append(ready.append)
    if ready.apply:
        yield f"apply {describe_entries(ready.apply)}"
    for read in ready.reads:
        yield f"read {read.request_id} at {read.read_index}"
    for request_id in ready.failed_reads:
        yield f"read {request_id} failed"


def describe_append(work: AppendWork) -> Iterator[str]:
    text = f"write #{work.token.sequence}" + ("" if work.must_sync else " no-sync")
    if work.snapshot is not None:
        text += f" snapshot {describe_meta(work.snapshot.meta)}"
    if work.entries:
        text += f" {describe_entries(work.entries)}"
    if work.hard_state is not None:
        state = work.hard_state
        text += f" term={state.term} vote={state.vote} commit={state.commit_index}"
    yield text
    for message in work.responses:
        yield f"  then {describe_message(message)}"


# --------------------------------------------------------------------------------------------------------------- files


@dataclass
class Block:
    """Comments, commands and their expected output."""

    comments: list[str]
    commands: list[str]
    expected: list[str]


def parse_script(text: str) -> list[Block]:
    blocks = []
    for part in text.strip().split("\n\n"):
        lines = part.splitlines()
        head = lines[: lines.index("----")] if "----" in lines else lines
        expected = lines[len(head) + 1 :]
        comments = [line for line in head if line.startswith("#")]
        blocks.append(Block(comments, [line for line in head if not line.startswith("#")], expected))
    return blocks


def run_script(blocks: list[Block]) -> list[list[str]]:
    """Return the output of each block."""
    script = Script()
    return [[line for command in block.commands for line in script.run(command)] for block in blocks]


def render_script(blocks: list[Block], outputs: list[list[str]]) -> str:
    parts = []
    for block, output in zip(blocks, outputs, strict=True):
        lines = [*block.comments, *block.commands]
        if block.commands:
            lines += ["----", *output]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def script_paths() -> list[Path]:
    return sorted((Path(__file__).parent / "scripts").glob("*.txt"))
