"""The nemesis of the first phase: crashes, cut links, pauses, stalled disks and a lost disk. Each may be absent."""

from __future__ import annotations

from raftmq.raft.ready import Role

from sim.core.cluster import SimCluster, members_of
from sim.core.options import TICK
from sim.core.replica import SimReplica

_WAITING = (Role.FOLLOWER, Role.PRE_CANDIDATE)
"""Roles in which a replica may ask for pre-votes again: no term changes before a majority would vote for it."""


class Nemesis:
    """Injects faults into a cluster at random times until it is stopped, and then heals everything."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        options = cluster.options
        self._election = options.settings.election_ticks * TICK
        self._has_wiped = False
        self._is_stopped = False
        weighted = (
            (self._crash, options.crash),
            (self._crash_all, options.crash_all),
            (self._isolate, options.isolate),
            (self._usurp, options.usurp),
            (self._interrupt, options.interrupt),
            (self._split, options.split),
            (self._one_way, options.one_way),
            (self._pause, options.pause),
            (self._stall_disk, options.disk_stall),
            (self._forget_leader, options.forget_leader),
            (self._step_down, options.step_down),
            (self._wipe, options.wipe),
        )
        self._faults = [fault for fault, weight in weighted for _ in range(weight)]
        if options.fault_every and self._faults:
            self._schedule()

    def stop(self) -> None:
        """Inject no more faults, mend links, and resume paused and crashed replicas."""
        self._is_stopped = True
        self._cluster.network.mend()
        self._cluster.network.is_healed = True
        for replica in list(self._cluster.replicas.values()):
            replica.paused_until = 0
            self._restart(replica)

    def _schedule(self) -> None:
        delay = self._cluster.random.expovariate(1 / (self._cluster.options.fault_every * TICK))
        self._cluster.events.after(int(delay) + 1, self._strike)

    def _strike(self) -> None:
        if self._is_stopped:
            return
        self._cluster.random.choice(self._faults)()
        self._schedule()

    def _note(self, text: str) -> None:
        if self._cluster.world.trace:
            self._cluster.world.trace(f"{self._cluster.events.now:>7} -- {text}")

    def _victim(self) -> SimReplica | None:
        """Draw a running replica, with a preference for a leader."""
        random_ = self._cluster.random
        leaders = self._cluster.leaders
        if leaders and random_.random() < 0.4:
            return random_.choice(leaders)[0]
        live = self._cluster.live
        return random_.choice(live) if live else None

    def _duration(self) -> int:
        return int(
            self._cluster.random.choice((0.5, 1.5, 4.0)) * self._cluster.random.uniform(0.3, 1.0) * self._election
        )

    def _crash(self) -> None:
        victim = self._victim()
        if victim is not None:
            victim.crash()
            self._cluster.events.after(self._duration(), self._restart, victim)

    def _crash_all(self) -> None:
        for victim in self._cluster.live:
            victim.crash()
            self._cluster.events.after(self._duration(), self._restart, victim)

    def _restart(self, replica: SimReplica) -> None:
        if replica.core is None and not replica.is_destroyed:
            replica.start()

    def _isolate(self) -> None:
        victim = self._victim()
        if victim is not None:
            self._note(f"r{victim.replica_id} is isolated")
            for other in self._cluster.replicas:
                self._cluster.network.cut(victim.replica_id, other)
                self._cluster.network.cut(other, victim.replica_id)
            self._mend_later()
            if self._cluster.random.random() < 0.3:
                self._transfer_leadership(victim, 20)

    def _transfer_leadership(self, leader: SimReplica, times: int) -> None:
        """Have a leader offer its leadership to one voter after another, as a stopping node does. This fails while the leader is cut off."""
        core = leader.core
        if self._is_stopped or core is None or core.role is not Role.LEADER or times == 0:
            return
        others = [member for member in core.membership.voters if member != leader.replica_id]
        if others:
            target = others[times % len(others)]
            self._note(f"r{leader.replica_id} offers its leadership to r{target}")
            core.transfer_leader(target)
            leader.pump()
            pause = int(self._cluster.random.uniform(0.1, 0.8) * self._election)
            self._cluster.events.after(pause, self._transfer_leadership, leader, times - 1)

    def _usurp(self) -> None:
        """Cut a leader off and let the others elect a new one immediately, as they do when the leader's process is known to have ended."""
        random_ = self._cluster.random
        leaders = self._cluster.leaders
        others = [replica for replica in self._cluster.live if replica.core and replica.core.role is Role.FOLLOWER]
        if not leaders or not others:
            return
        victim, _ = random_.choice(leaders)
        duration = int(random_.uniform(1, 12) * TICK)
        if self._cluster.options.pause and random_.random() < 0.4:
            self._note(f"r{victim.replica_id} pauses for {duration}, the others forget it")
            victim.paused_until = self._cluster.events.now + duration
        else:
            self._cut_off(victim, is_deaf_too=random_.random() < 0.5)
            self._cluster.events.after(duration, self._mend)
        for replica in others:
            if replica.core is not None:
                replica.core.forget_leader()
        candidate = random_.choice(others)
        if candidate.core is not None:
            candidate.core.campaign()
            candidate.pump()
        if self._cluster.options.disk_stall and random_.random() < 0.5:
            victim.stall_disk(duration + TICK)  # the victim returns while its log tail is still being written

    def _interrupt(self) -> None:
        """Remove a leader while a follower's disk lags. The follower then campaigns with entries that its disk does not hold."""
        random_ = self._cluster.random
        leaders = self._cluster.leaders
        others = [replica for replica in self._cluster.live if replica.core and replica.core.role is Role.FOLLOWER]
        if not leaders or not others:
            return
        leader, candidate = random_.choice(leaders)[0], random_.choice(others)
        lag = int(random_.uniform(2, 12) * TICK)
        self._note(f"r{candidate.replica_id} will campaign for the place of r{leader.replica_id}, and be interrupted")
        candidate.stall_disk(lag)
        begin = int(random_.uniform(0.2, 0.7) * lag)
        self._cluster.events.after(begin, self._depose, leader, candidate, candidate.life, lag - begin)

    def _depose(self, leader: SimReplica, candidate: SimReplica, life: int, lag: int) -> None:
        """Stop the leader, let all replicas forget it and the candidate campaign repeatedly, and kill the candidate before `lag` has passed."""
        if self._is_stopped or candidate.life != life:
            return
        if leader.core is not None and self._cluster.random.random() < 0.5:
            leader.crash()
            self._cluster.events.after(self._duration(), self._restart, leader)
        else:
            self._cut_off(leader, is_deaf_too=True)
            self._mend_later()
        for replica in self._cluster.live:
            if replica.core is not None:
                replica.core.forget_leader()
        end = int(self._cluster.random.uniform(0.3, 1.0) * lag)
        self._ask_often(candidate, life, 3, end)
        self._cluster.events.after(end, self._kill_candidate, candidate, life)

    def _ask_often(self, candidate: SimReplica, life: int, times: int, within: int) -> None:
        """Have the candidate campaign immediately and at some random times later, until somebody wins."""
        for number in range(times):
            delay = int(self._cluster.random.random() * within) if number else 1
            self._cluster.events.after(delay, self._ask, candidate, life)

    def _ask(self, candidate: SimReplica, life: int) -> None:
        core = candidate.core
        if not self._is_stopped and core is not None and candidate.life == life and core.role in _WAITING:
            core.forget_leader()
            core.campaign()
            candidate.pump()

    def _kill_candidate(self, candidate: SimReplica, life: int) -> None:
        if not self._is_stopped and candidate.core is not None and candidate.life == life:
            candidate.crash()
            down = int(self._cluster.random.random() * TICK) + 1
            self._cluster.events.after(down, self._come_back, candidate)

    def _come_back(self, candidate: SimReplica) -> None:
        """Restart the candidate, which knows nothing of its campaign. It campaigns again while answers to the first campaign are under way."""
        if not self._is_stopped:
            self._restart(candidate)
            self._ask_often(candidate, candidate.life, 4, 3 * TICK)

    def _cut_off(self, victim: SimReplica, *, is_deaf_too: bool) -> None:
        self._note(f"r{victim.replica_id} is cut off, the others forget it")
        for other in self._cluster.replicas:
            self._cluster.network.cut(victim.replica_id, other)
            if is_deaf_too:
                self._cluster.network.cut(other, victim.replica_id)

    def _split(self) -> None:
        ids = list(self._cluster.replicas)
        self._cluster.random.shuffle(ids)
        border = self._cluster.random.randrange(1, len(ids))
        self._note(f"split {ids[:border]} | {ids[border:]}")
        for left in ids[:border]:
            for right in ids[border:]:
                self._cluster.network.cut(left, right)
                self._cluster.network.cut(right, left)
        self._mend_later()

    def _one_way(self) -> None:
        victim = self._victim()
        if victim is not None:
            is_deaf = self._cluster.random.random() < 0.5
            self._note(f"r{victim.replica_id} is {'deaf' if is_deaf else 'mute'}")
            for other in self._cluster.replicas:
                if is_deaf:
                    self._cluster.network.cut(other, victim.replica_id)
                else:
                    self._cluster.network.cut(victim.replica_id, other)
            self._mend_later()

    def _mend_later(self) -> None:
        self._cluster.events.after(self._duration(), self._mend)

    def _mend(self) -> None:
        self._note("links mended")
        self._cluster.network.mend()

    def _pause(self) -> None:
        victim = self._victim()
        if victim is not None:
            duration = self._duration()
            self._note(f"r{victim.replica_id} pauses for {duration}")
            victim.paused_until = self._cluster.events.now + duration
            self._cluster.events.after(duration + 1, self._woke, victim, victim.life)

    def _woke(self, victim: SimReplica, life: int) -> None:
        core = victim.core
        if core is not None and victim.life == life and self._cluster.random.random() < 0.5:
            core.require_confirmation()
            victim.pump()

    def _stall_disk(self) -> None:
        victim = self._victim()
        if victim is not None:
            duration = self._duration()
            self._note(f"disk of r{victim.replica_id} stalls for {duration}")
            victim.stall_disk(duration)

    def _forget_leader(self) -> None:
        victim = self._victim()
        if victim is not None and victim.core is not None and victim.core.role is Role.FOLLOWER:
            self._note(f"r{victim.replica_id} forgets its leader")
            victim.core.forget_leader()
            victim.pump()

    def _step_down(self) -> None:
        for leader, core in self._cluster.leaders:
            self._note(f"r{leader.replica_id} steps down")
            core.step_down()
            leader.pump()

    def _wipe(self) -> None:
        """Destroy one member's disk, once per run. The group tolerates that only if each half has at least three voters."""
        _, membership = self._cluster.latest_membership()
        if self._has_wiped or min(len(membership.voters), len(membership.outgoing) or 3) < 3:
            return
        victim = self._cluster.replicas[self._cluster.random.choice(members_of(membership))]
        self._has_wiped = True
        self._note(f"r{victim.replica_id} loses its disk")
        victim.destroy()
