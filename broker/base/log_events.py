"""Every event that a broker logs, with what it means and what to do: the reference page prints it beside level and fields.

A name is a static fact in snake_case; what it is about goes in fields, whose names are `FIELDS`. Payloads, keys and credentials
are never logged. What lasts is said when it begins and then about once a minute (`log_throttle.py`). A test compares this page with
the calls in the code, both ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EVENTS: Final[Mapping[str, str]] = {
    # life
    "broker_ready": "The broker serves",
    "broker_stopping": "It was told to stop: it hands its leaderships over and answers what waits",
    "broker_exits": "A commit failed, the metadata replica is damaged, or an orderly end hung: nothing after this could be believed. "
    "Look at the disk, then start it again: nothing acknowledged is lost",
    "background_work_failed": "A defect of the broker, in the work named by `loop`: it is begun again after a pause. Please report it with "
    "the traceback. After a failed commit the process ends",
    "background_step_postponed": "A step of the work named by `loop` was refused, as while leadership moves; the next round does it",
    "shutdown_overdue": "A phase of the orderly end was not over in time and is left: something hangs, mostly a disk. The process ends all the "
    "same, and its next start takes it for an abnormal exit",
    "shutdown_phase_failed": "A phase of the orderly end failed; the others go on",
    "broker_silenced": "The broker takes no part in its cluster until it is started again, as /readyz says: its data directory is an "
    "older copy or runs twice (`stale_directory`), or the metadata is of a newer version (`unsupported_format`)",
    "connections_limited": "The process may open too few files for all the connections that a broker takes: replica files come first. "
    "Fewer clients can connect, as `limit` says; raise the limit (`ulimit -Hn`)",
    "partitions_limited": "The process may open too few files for `partitions_max`; raise the limit (`ulimit -n`)",
    # cluster
    "cluster_formed": "This broker formed a cluster, once",
    "cluster_joined": "A cluster admitted this broker",
    "announcement_postponed": "The cluster could not yet be told this broker's addresses; it is tried again",
    "seed_unavailable": "A broker asked about the cluster does not answer; others are asked, and it again later",
    "seed_of_another_cluster": "A seed of `--join` belongs to another cluster, while another belongs to ours: correct the list",
    "other_cluster_met": "Another cluster is at the address of a broker of this one, or connects to it: was it formed twice?",
    "registry_older_than_replicas": "The only broker of a cluster found an older node.mdb beside its replicas, and goes on: replicas that it "
    "does not know are quarantined",
    "removed_from_cluster": "The cluster refuses this data directory for ever, as /readyz says. Stop the broker, and start it on an "
    "empty directory to use the machine again",
    "broker_removed": "A broker was removed for good by an operator; `replicas` counts what it held",
    # peers
    "peer_connected": "The control channel to a broker is up",
    "peer_disconnected": "It is down",
    "peer_connect_failed": "A connection attempt failed; it is repeated",
    "peer_not_in_a_cluster": "A broker that this one knows has not joined yet, as while a cluster forms.",
    "peer_refused_connection": "A broker refuses this one, for the reason given: another cluster, a changed identity, a "
    "broker that is not formed yet (that passes)",
    "peer_frame_refused": "Something else than RaftMQ, or another version, speaks to the peer port; the connection was closed",
    "peer_frame_unexpected": "A peer sent a frame that has no place here: versions differ",
    # leadership and replicas
    "leader_elected": "A replica here leads its group",
    "leader_disk_hangs": "A write of a leader takes longer than an election: it hands over. Look at the disk",
    "membership_change_proposed": "A group led here changes its members",
    "metadata_voters_chosen": "Other brokers vote on metadata from now on",
    "replica_quarantined": "A replica's data is damaged or missing: it is silent, its file kept, and the others rebuild it. "
    "Look at the disk",
    "replica_stopped": "A replica was stopped because of a broken rule or damage; the others go on",
    "replica_damage_reported": "The leaders of damaged replicas' groups were told",
    "replicas_reported": "The metadata leader was told of damaged replicas, and of such that left their groups",
    "replicas_replaced": "Partitions that a removed broker left short of a replica were given another, on other brokers; `replicas` "
    "counts them",
    "replicas_without_broker": "Partitions have fewer replicas than their topics want, and no broker within reach can take another: "
    "add one, or start those that are down. `replicas` counts the partitions",
    "replica_not_verified": "A file that a process may have died of reading could not be verified in a child process, for the reason "
    "given; it is opened all the same, and every read checks what it reads",
    "last_exit_by_fault": "The process before this one died of a memory fault, as of a page that the disk cannot give: `replicas` are "
    "the ones whose files it read last (group-replica), `reason` its stacks. They are verified before they are opened. Look at the disk",
    "replica_retired": "A replica that metadata does not want any more went to the trash",
    "replica_postponed": "The replica's file could not be read just now; it is tried again",
    "replica_not_served": "A replica that metadata wants here cannot be served, for the `reason`, of the kind `error_code`: it is tried again "
    "after a pause that grows, and rebuilt by the others if that fails for ten minutes (not for lack of room)",
    "replica_served_again": "A replica that could not be served is, after so many attempts",
    "scrub_postponed": "A replica could not be read back now; the next pass comes to it again",
    "catch_up_read_failed": "Entries for a follower could not be read; it is tried again",
    # snapshots
    "snapshot_sent": "A replica elsewhere was sent the state of its group",
    "snapshot_not_sent": "It changed or went while it was sent; the follower asks again",
    "snapshot_dropped": "A snapshot that was being received is too large, or was not whole",
    "snapshot_install_started": "A replica here is replaced by a snapshot",
    "snapshot_waits_for_space": "There is no room to install it: make some",
    # disk
    "disk_reserve_reached": "Less space is free than the reserve: appends are refused until there is more. Make room",
    "disk_space_recovered": "Appends are taken again",
    "space_return_postponed": "What deleted data took in a replica's file could not be given back now; it is tried again",
    "file_without_holes": "The file system, or this version of LMDB, does not let free parts of a file be given back where they are: "
    "files are copied instead, as far as that takes neither long nor much space",
    "write_waits_for_space": "A write found no room; it is repeated until there is. Make room",
    "map_nearly_full": "The map of a replica's file was nearly full, and was grown",
    # clocks
    "clock_differs": "This broker's wall clock is not the majority's, or there is no majority (`reason`: differs, disputed). It deletes "
    "nothing for its age, and gives its leaderships away in the first case. Set the clock, and keep it set",
    "clock_agrees": "It is the majority's again",
    # data
    "log_trimmed": "Retention deleted the records before an offset",
    "retention_postponed": "A partition could not be trimmed now; the next round tries again",
    "truncated_rows_left": "Deleting trimmed entries from a file was postponed",
    # requests
    "append_failed": "A defect of the broker in one request of a stream; its client was told that the outcome is unknown",
    "request_failed": "A defect of the broker in one call; its client was told the `error_id`. Please report it",
    "slow_reader_disconnected": "A client that did not take its answers was cut off, because others needed the memory",
    "http_request_refused": "Something that is not HTTP was sent to the HTTP port, such as TLS: the sender got status 400 or lost the connection",
    "client_connections_evicted": "Nearly all places for connections to the client port were taken, so those without a call were "
    "closed, the longest silent first. More clients than `limit` need a higher limit of open files (`ulimit -Hn`)",
    # consumer groups
    "group_assigned": "Members of a consumer group were given partitions, or asked to give some up",
    "group_member_expired": "A member was put out of its consumer group: nothing was heard of it for a session, or it did not "
    "give up in time what it was asked for",
    "consumer_group_expired": "A consumer group without members was forgotten",
    "offsets_expired": "A partition forgot the offsets of consumer groups that nobody used",
    "assignor_failed": "A consumer group could not be assigned: it stays as it is, and is tried again more and more seldom. An "
    "installed assignor raised, took too long, gave a partition twice, or is not installed on this broker",
    "assignment_failed": "A defect of the broker in assigning one consumer group; it is tried again. Please report it",
    # loop
    "loop_blocked": "The event loop stands still now; stacks go to standard error, at most once a minute. The machine is "
    "overloaded or swaps, or the disk blocks",
    "loop_stalled": "The event loop stood still; leaders were confirmed before they answered again",
    # by the way
    "coordination_postponed": "A look of the groups' coordinator could not be done; the next one sees things as they are",
    "assignment_postponed": "An assignment was computed and not stored: another broker coordinates, or the next look does it",
    "group_command_rejected": "A consumer group had changed before what was proposed for it was applied",
    "reconciliation_postponed": "A round of the controller could not be done; the next one sees things as they are",
    "library_message": "A library logged something, at WARNING or above",
}

FIELDS: Final[Mapping[str, str]] = {
    "broker_id": "this broker",
    "cluster_id": "the cluster",
    "peer_id": "another broker",
    "group_id": "a Raft group: 0 is the metadata, others are partitions (`raftmq topic describe` names them)",
    "replica_id": "a replica of a group; never used twice",
    "replicas": "replica ids, or how many",
    "term": "of the group",
    "index": "a Raft index",
    "state_index": "the index that a snapshot's state stands at",
    "offset": "a record's offset",
    "consumer_group": "its name",
    "member_id": "of a consumer group's member",
    "members": "how many",
    "assignor": "its name",
    "changed": "how many members",
    "count": "how many",
    "attempt": "which one",
    "rows": "rows of state in a snapshot",
    "address": "`host:port`",
    "peer": "a client's address",
    "path": "on this machine",
    "channel": "of a connection between brokers: control, append or snapshot",
    "frame_type": "of the protocol between brokers",
    "method": "of the client protocol",
    "reason": "in words",
    "error_code": "a code of the client protocol, or the class of an error",
    "error_id": "ties a client's error to this event",
    "elapsed_seconds": "how long it took or has taken",
    "limit": "a bound",
    "loop": "what runs in the background: the values of `raftmq_background_failures_total`",
    "phase": "of an orderly end",
    "offset_seconds": "how far this broker's clock is ahead of the others'",
    "steps": "of a change of membership",
    "damaged": "how many",
    "left": "how many",
    "others": "how many like it were not logged",
    "used_fraction": "0 to 1",
    "new_map_bytes": "size of a file's map",
    "has_stacks": "whether the stacks of all threads follow",
    "exc_info": "a traceback, without values",
    "library": "the library's logger",
    "message": "its text",
}
