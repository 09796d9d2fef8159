"""Bugs of claims of producers' names."""

# ruff: noqa: ANN401, D103 -- a mutant has the parameters of the product's method, and its text is in the decorator

from __future__ import annotations

from typing import Any, Final

from sim.cluster.mutants.registry import claim_mutant, entry_mutant, replace_method
from sim.cluster.options import FAULTS

OLD_LEADERS: Final[dict[str, object]] = {
    **dict.fromkeys(FAULTS, 0),
    "isolate": 1,
    "fault_every": 1.5,
    "seconds": 30.0,
    "machines": 3,
    "tick_seconds": 0.25,
    "election_ticks": 5,
    "clock_rates": (0.8, 1.25),
    "disk_latency": 0.0005,
    "delay_mean": 0.0005,
    "slow_share": 0.0,
    "reset_share": 0.0,
    "drop_share": 0.0,
}
"""Options under which the metadata often has a new leader that serves clients before the old one steps down."""


@claim_mutant("service", "a claim that changes nothing is answered without a majority", **OLD_LEADERS)
def unconfirmed_claims() -> None:
    from raftmq.broker.services.producer_ids import ProducerIds

    class Trusting:
        async def confirm_metadata(self, deadline: float) -> None:
            """Do nothing."""

    def make(init: Any) -> Any:
        def trusting(self: Any, *arguments: Any) -> None:
            init(self, *arguments)
            self._locator = Trusting()

        return trusting

    replace_method(ProducerIds, "__init__", make)


@claim_mutant("machine", "a claim replaces any stamp, not only the one that it names")
def claims_replace_any_stamp() -> None:
    import msgspec
    from raftmq.fsm import metadata_producers

    def make(claim: Any) -> Any:
        def blind(tables: Any, command: Any, now_ms: int) -> Any:
            known = tables.producer_names.get(command.name)
            if known is not None and command.replaces is not None:
                command = msgspec.structs.replace(command, replaces=known.stamp)
            return claim(tables, command, now_ms)

        return blind

    replace_method(metadata_producers, "_claim", make)


@claim_mutant("machine", "a second claim is made although the first one failed")
def second_claims_stand_alone() -> None:
    from raftmq.fsm import metadata, metadata_producers

    def make(init: Any) -> Any:
        def loose(tables: Any, command: Any, now_ms: int) -> Any:
            result = init(tables, command, now_ms)
            if command.then is not None and getattr(result, "stamp", command.stamp) != command.stamp:
                metadata_producers._claim(tables, command.then, now_ms)
            return result

        return loose

    replace_method(metadata, "init_named_producer", make)


@entry_mutant("machine", "a claim that adds bits replaces those that are there")
def added_bits_replace_others() -> None:
    from raftmq.fsm import metadata_producers

    def make(united: Any) -> Any:
        def forgetful(stamp: bytes, claim: Any) -> bytes:
            return claim.stamp if united(stamp, claim) != stamp else stamp

        return forgetful

    replace_method(metadata_producers, "_united", make)


@entry_mutant("machine", "a claim adds bits only to a stamp that has none")
def bits_added_once() -> None:
    from raftmq.fsm import metadata_producers

    def make(united: Any) -> Any:
        def once(stamp: bytes, claim: Any) -> bytes:
            return united(stamp, claim) if len(stamp) <= claim.shared_bytes else stamp

        return once

    replace_method(metadata_producers, "_united", make)
