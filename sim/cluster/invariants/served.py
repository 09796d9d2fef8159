"""`ServedOrReported`, `DefectStays`: a node serves each of its replicas, or reports that it does not. A defect of the program affects only
its replica or its step, never the process or another machine (promise: no failure is silent).
"""

from __future__ import annotations

from raftmq.broker.base.readiness import Reason
from raftmq.broker.base.request_error import RequestError

from sim.cluster.cluster import Process
from sim.core.invariants.violation import demand

_TAKES_NO_PART = {Reason.REMOVED, Reason.STALE_DIRECTORY, Reason.UNSUPPORTED_FORMAT, Reason.STOPPING}


class PlantedDefect(Exception):  # noqa: N818 - it is what it is called
    """The error that a planted defect raises."""

    def __init__(self, machine: str, where: str) -> None:
        super().__init__(f"planted on {machine}: {where}")
        self.machine = machine


def check_served_or_reported(process: Process) -> None:
    """Check that a ready node serves or reports every replica that metadata places on it, by independent means."""
    node = process.node
    assert node is not None
    try:
        metadata = node.view.metadata.state_machine
    except RequestError:
        return  # a snapshot of the metadata is being installed
    me = metadata.node(node.view.node_id)
    if me is None or me.uuid != node.registry.uuid:
        return
    reasons = {reason.reason for reason in node.standing.not_ready_reasons()}
    if reasons & _TAKES_NO_PART:
        return  # it serves nothing, and reports that
    is_starting = Reason.STARTING_REPLICAS in reasons
    for view in metadata.partitions_of_node(node.view.node_id):
        partition = node.partitions.get(view.group_id)  # type: ignore[call-overload]  # by number
        if partition is not None and not partition.replica.is_closed:
            continue
        wanted = next(
            (r for r in view.replicas + view.retiring if r.node_id == node.view.node_id and not r.is_lost), None
        )
        if wanted is None:
            continue
        said = "\n".join(node.standing.warnings())
        demand(
            is_starting or f"replica {wanted.replica_id} of group {view.group_id} is not served" in said,
            "ServedOrReported",
            f"{process.machine.name} serves no r{wanted.replica_id} of g{view.group_id}, and says nothing of it",
        )


def check_defect_stays(machine: str, error: BaseException) -> None:
    """Check that a failure on a machine is not a defect planted on another one."""
    if isinstance(error, PlantedDefect):
        demand(error.machine == machine, "DefectStays", f"{machine} has what was {error}")


def check_defect_ends_nothing(machine: str, error: BaseException) -> None:
    """Check that the process did not end because of a planted defect."""
    demand(not isinstance(error, PlantedDefect), "DefectStays", f"{machine} ends for a defect {error}")
