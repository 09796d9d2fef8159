"""Define every event that a broker logs, with its meaning and the remedy. The reference page prints them with level and fields.

An event's name is a static fact in snake_case. Its data goes into fields with the names of `FIELDS`. Payloads, keys and credentials
are never logged. A lasting condition is logged when it begins and then about once a minute (`log_throttle.py`). A test compares this
module with the calls in the code, both ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EVENTS: Final[Mapping[str, str]] = {
    # life
    "broker_ready": "The broker serves requests",
    "broker_stopping": "The broker was told to stop: it transfers its leaderships and answers waiting requests",
    "broker_exits": "A commit failed, the metadata replica is damaged, or an orderly stop hung, so the broker's state can no longer be "
    "trusted. Check the disk, then start the broker again: no acknowledged record is lost",
    "background_work_failed": "A defect of the broker in the work named by `loop`. The work is restarted after a pause. After a failed "
    "commit the process ends instead. Please report the defect with the traceback",
    "background_step_postponed": "A step of the work named by `loop` was refused, for example while leadership moves. The next round repeats it",
    "service_manager_not_told": "A report to systemd could not be sent. The broker continues",
    "shutdown_overdue": "A phase of the orderly stop was not done in time and was abandoned, usually because a disk hangs. The process still "
    "ends, and its next start treats this as an abnormal exit",
    "shutdown_phase_failed": "A phase of the orderly stop failed. The other phases continue",
    "broker_silenced": "The broker takes no part in its cluster until it is restarted, as /readyz reports: its data directory is an older "
    "copy or is used twice (`stale_directory`), or a newer version wrote the metadata (`unsupported_format`)",
    "connections_limited": "The process may open too few files for all connections that a broker accepts, because replica files come first. "
    "Fewer clients can connect, as `limit` shows. Raise the limit (`ulimit -Hn`)",
    "partitions_limited": "The process may open too few files for `partitions_max`. Raise the limit (`ulimit -n`)",
    # cluster
    "cluster_formed": "This broker formed a cluster, which happens once",
    "cluster_joined": "A cluster admitted this broker",
    "announcement_postponed": "The cluster could not be told this broker's addresses yet. The broker tries again",
    "seed_unavailable": "A broker that was asked about the cluster does not answer. Others are asked, and it is asked again later",
    "seed_of_another_cluster": "One seed of `--join` belongs to another cluster, while another seed belongs to this one: correct the list",
    "other_cluster_met": "Another cluster is at the address of a broker of this one, or connects to it. The cluster may have been formed twice",
    "registry_older_than_replicas": "The only broker of a cluster found an older node.mdb beside its replicas, and continues. Replicas that "
    "node.mdb does not know are quarantined",
    "removed_from_cluster": "The cluster refuses this data directory permanently, as /readyz reports. Stop the broker. To use the machine "
    "again, start a broker on an empty directory",
    "broker_removed": "An operator removed a broker permanently. `replicas` counts the replicas that it held",
    "settings_adopted": "The broker has started, and follows the settings that operators have given to the cluster or to this broker",
    "settings_changed": "An operator changed settings of the cluster or of this broker, which follows them from now on",
    "setting_not_understood": "A setting of the cluster has a value that this version does not know. The broker keeps its own value: upgrade it",
    "feature_level_raised": "An operator raised the feature level of the cluster. Programs that know only lower levels cannot take part any more",
    # peers
    "peer_connected": "The control channel to a broker is up",
    "peer_disconnected": "The control channel to a broker is down",
    "peer_connect_failed": "A connection attempt to a broker failed. It is repeated",
    "peer_not_in_a_cluster": "A known broker has not joined yet. This is normal while a cluster forms",
    "peer_refused_connection": "A broker refuses this one for the given reason: another cluster, a changed identity, or a broker that has no "
    "cluster yet (which passes)",
    "peer_frame_refused": "The peer port received bytes of another protocol or another version. The connection was closed",
    "peer_responses_unread": "The broker `peer_id` does not read the responses to its requests. The connection was closed",
    "peer_frame_unexpected": "A peer sent a frame that is not expected here, because versions differ",
    # leadership and replicas
    "leader_elected": "A replica here leads its group",
    "leader_disk_hangs": "A write of a leader takes longer than an election, so it transfers its leadership. Check the disk",
    "membership_change_proposed": "A group led here changes its members",
    "membership_target_outdated": "A group led here has carried out later metadata than this broker knows, and refuses earlier wishes. It ends when "
    "the broker has caught up",
    "metadata_voters_chosen": "Other brokers vote on metadata from now on",
    "replica_quarantined": "A replica's data is damaged or missing. It is silent, its file is kept, and the others rebuild it. "
    "Check the disk",
    "replica_stopped": "A replica was stopped because of a broken invariant or damage. The others continue",
    "replica_damage_reported": "This broker reported damaged replicas to the leaders of their groups",
    "replicas_reported": "This broker reported to the metadata leader which replicas are damaged, have left their groups, or have begun to vote",
    "replicas_replaced": "Partitions that lost a replica with a removed broker were given another one on other brokers. `replicas` "
    "counts the new replicas",
    "replicas_without_broker": "Partitions have fewer replicas than their topics want, and no reachable broker can accept another one. "
    "Add a broker, or start those that are down. `replicas` counts the partitions",
    "moves_planned": "The controller planned to move replicas or preferred leaderships of this many partitions",
    "replica_placed_elsewhere": "The new replica of a raised replication factor made no progress, and another broker gets it",
    "replica_stuck": "The new replica of a raised replication factor makes no progress, and no other broker can take it. "
    "The leader keeps trying: start or repair its broker, or add another one",
    "move_given_up": "The new replica of a move made no progress: the partition has its replicas of before again",
    "moves_begun": "The controller changed the wanted replicas, or their order, of this many partitions",
    "moves_refused": "Partitions had changed before the controller changed their wanted replicas. It plans again. `reason` is that of the first",
    "replicas_without_place": "A broker is being drained, and no other broker can take all of its replicas. Add a broker, or start those that are "
    "down. `replicas` counts those without a place",
    "rebalancing_done": "The rebalancing that an operator asked for is done",
    "leadership_offered": "This broker transfers the leadership of a partition to its preferred leader, or to another replica because it is "
    "being drained",
    "broker_draining": "An operator began to drain the broker `peer_id`: its replicas and leaderships move to others",
    "broker_drain_ended": "An operator ended the draining of the broker `peer_id`: it gets replicas again",
    "replica_not_verified": "A file whose reading may have killed a process could not be verified in a child process, for the given reason. "
    "It is opened nevertheless, and every read checks its data",
    "last_exit_by_fault": "The previous process died of a memory fault, such as a page that the disk cannot read. `replicas` are those whose "
    "files it read last (group-replica), `reason` its stacks. They are verified before they are opened. Check the disk",
    "partition_recovered": "An operator revived a partition without a majority from the replica on the broker `peer_id`. Records from `offset` on that "
    "only the other brokers had are lost",
    "group_recovered": "On an operator's order a replica of a group without a majority founded a new group with its data. Records that only the "
    "others had are lost",
    "replica_retired": "The file of a replica that metadata no longer wants was moved to the trash",
    "replica_postponed": "The replica's file is temporarily unreadable. The read is repeated",
    "replica_not_served": "A replica that metadata wants here cannot be served, for the `reason`, of the kind `error_code`. It is tried again "
    "after growing pauses. If that fails for ten minutes the others rebuild it (except for lack of space)",
    "replica_served_again": "A replica that could not be served is served again, after `attempt` attempts",
    "scrub_postponed": "A replica could not be read back now. The next pass tries it again",
    "catch_up_read_failed": "Entries for a follower could not be read. The read is repeated",
    # snapshots
    "snapshot_sent": "A replica on another broker was sent the state of its group",
    "snapshot_not_sent": "The group changed or was removed while its snapshot was sent. The follower asks again",
    "snapshot_copied": "The state of a partition was copied, and snapshots are sent from the copy",
    "snapshot_copy_refused": "There is no room to copy the state of a partition, so a snapshot is sent from its file, which grows "
    "in the meantime",
    "snapshot_copy_left": "A copy of a state was not deleted before the broker stopped. The next start deletes it",
    "snapshot_resumed": "A snapshot goes on where it was interrupted",
    "snapshot_too_slow": "A snapshot was given up: its receiver accepted nothing, or its time was over. The follower asks again",
    "snapshot_dropped": "A snapshot that was being received was too large or incomplete",
    "snapshot_install_started": "A snapshot replaces the state of a replica here",
    "snapshot_waits_for_space": "There is no disk space to install a snapshot. Free some",
    # disk
    "disk_reserve_reached": "Less space is free than the reserve: appends are refused until there is more. Free some",
    "disk_space_recovered": "Appends are accepted again",
    "ballast_not_allocated": "The space that a full disk needs for votes and deletions could not be reserved, although the volume shows room. "
    "The next attempt follows after a minute. Raise the user's quota, or the limit that `reason` names",
    "space_return_postponed": "The space of deleted data in a replica's file could not be returned now. The next round tries again",
    "file_without_holes": "The file system, or this version of LMDB, does not allow parts of a file to be freed in place. Files are copied "
    "instead, as far as that takes little time and space",
    "write_waits_for_space": "A write found no disk space. It is repeated until there is some. Free some",
    "write_back_waits_for_space": "A write-back of a queue's state found no disk space. It is repeated until there is some. Free some",
    "rows_not_read": "Rows of a queue cannot be read now (no memory, no descriptors). They are read again, and the queue waits for them",
    "schedule_not_computed": "A schedule that is due cannot be computed by this broker: it does not know the time zone, or a newer version "
    "wrote the schedule. It waits for another leader. Install the time zone data of the other brokers (tzdata)",
    "schedule_not_fired": "A schedule that is due puts no message, because its key belongs to another partition since the topic got more "
    "partitions, and the order of the key would not hold. Delete the schedule, and put it under a name of that partition or without a key",
    "dead_letters_not_copied": "Dead messages of a queue cannot be copied to its dead letter topic now, for the given reason. They stay in "
    "their partition, and the copies go on when the reason has passed: give the dead letter topic room, create it again, or choose another",
    "dead_letters_restarted": "The dead letter topic cannot continue the copies of a partition: it forgot them, or messages were redriven "
    "or removed before they were copied. Copies begin again with the first message without one, which may be there twice",
    "bodies_not_evacuated": "Bodies of long-delayed messages found no disk space beside the log, which therefore keeps its length. Free some",
    "map_nearly_full": "The map of a replica's file was nearly full and was grown",
    "map_not_grown": "The map of a replica's file is nearly full, and the process has no address space for a larger one. When it is full, the "
    "replica's writes wait. Raise the limit (`ulimit -v`)",
    # clocks
    "clock_differs": "This broker's wall clock differs from the majority's, or there is no majority (`reason`: differs, disputed). It deletes "
    "no records for their age, and in the first case transfers its leaderships. Set the clock, and keep it synchronised",
    "clock_agrees": "This broker's wall clock agrees with the majority's again",
    # data
    "log_trimmed": "Retention deleted the records before an offset",
    "retention_postponed": "A partition could not be trimmed now. The next round tries again",
    "truncated_rows_left": "Deleting trimmed entries from a file was postponed",
    # requests
    "append_failed": "A defect of the broker in one request of a stream. Its client was told that the outcome is unknown",
    "request_failed": "A defect of the broker in one call. Its client was told the `error_id`. Please report it",
    "slow_request": "A request took longer than `slow_request_seconds`. `error_code` of an append is that of the first refused partition. For an append the phases name the cause: waiting to be proposed, "
    "this broker's disk, a majority of the replicas, or applying and answering. At most ten are logged in ten seconds",
    "slow_reader_disconnected": "A client that did not read its answers was disconnected, because others needed the memory",
    "metric_unknown": "A defect of the broker: it measures a metric that its catalog lacks, so /metrics does not show it. Please report it",
    "http_request_refused": "The HTTP port received something that is not HTTP, such as TLS. The sender got status 400 or was disconnected",
    "client_connections_evicted": "Nearly all connections to the client port were in use, so those without a call were closed, the longest "
    "silent first. For more clients than `limit` raise the limit of open files (`ulimit -Hn`)",
    # consumer groups
    "group_assigned": "Members of a consumer group were assigned partitions, or asked to give some up",
    "group_member_expired": "A member was removed from its consumer group, because it sent no heartbeat for a session or did not give up "
    "partitions in time",
    "consumer_group_expired": "A consumer group without members was forgotten",
    "offsets_expired": "A partition forgot the unused offsets of consumer groups",
    "assignor_failed": "No assignment could be computed for a consumer group. The present one stays, and attempts are repeated after growing "
    "pauses. An installed assignor raised, took too long, assigned a partition twice, or is not installed on this broker",
    "assignment_failed": "A defect of the broker while it assigned one consumer group. It tries again. Please report it",
    # loop
    "loop_blocked": "The event loop is stalled. Stacks are written to standard error, at most once a minute. The machine is "
    "overloaded or swaps, or the disk blocks",
    "loop_stalled": "The event loop was stalled, or the machine suspended. Leaders were confirmed before they answered again",
    # by the way
    "coordination_postponed": "A check of the groups' coordinator could not be done. The next one uses the new state",
    "assignment_postponed": "An assignment was computed but not stored: another broker coordinates, or the next check repeats it",
    "group_command_rejected": "A consumer group had changed before a command for it was applied",
    "balancing_postponed": "A round of the controller that moves replicas could not be done. The next one uses the new state",
    "reconciliation_postponed": "A round of the controller could not be done. The next one uses the new state",
    "library_message": "A library logged a message at WARNING or above",
}

FIELDS: Final[Mapping[str, str]] = {
    "broker_id": "this broker",
    "cluster_id": "the cluster",
    "peer_id": "another broker",
    "group_id": "a Raft group: 0 is the metadata, others are partitions (`raftmq topic describe` names them)",
    "replica_id": "a replica of a group, never used twice",
    "old_group_id": "the group that `group_id` replaces",
    "old_replica_id": "the replica whose data was kept",
    "topic": "the topic's name",
    "partition": "the partition's number",
    "replicas": "replica ids, or their number",
    "term": "the group's term",
    "index": "a Raft index",
    "state_index": "the index of a snapshot's state",
    "offset": "a record's offset",
    "consumer_group": "the group's name",
    "member_id": "the id of a consumer group's member",
    "members": "number of members",
    "assignor": "the assignor's name",
    "changed": "number of members whose assignment changed",
    "count": "number of items",
    "attempt": "number of the attempt",
    "rows": "rows of state in a snapshot",
    "bytes": "size of a file",
    "address": "`host:port`",
    "peer": "a client's address",
    "path": "a path on this machine",
    "channel": "a connection between brokers: control, append or snapshot",
    "frame_type": "a frame of the protocol between brokers",
    "method": "a method of the client protocol",
    "metric": "the name of a metric",
    "level": "a feature level",
    "partitions": "a number of partitions",
    "reason": "the reason as a text",
    "error_code": "a code of the client protocol, or the class of an error",
    "error_id": "connects a client's error with this event",
    "elapsed_seconds": "duration so far",
    "queued_seconds": "time until an append was proposed",
    "disk_seconds": "time from the proposal until this broker's disk had it",
    "replication_seconds": "time from there until a majority had it",
    "apply_seconds": "time from there until the answer",
    "limit": "the limit that was reached",
    "loop": "a kind of background work: the values of `raftmq_background_failures_total`",
    "phase": "a phase of an orderly stop",
    "offset_seconds": "how far this broker's clock is ahead of the others'",
    "settings": "names of settings. If they were adopted or changed, with the values and sources in force from then on",
    "steps": "the steps of a change of membership",
    "damaged": "number of damaged replicas",
    "left": "number of replicas that left their groups",
    "joined": "number of replicas that began to vote",
    "stuck": "number of replicas that make no progress",
    "others": "number of similar events that were not logged",
    "used_fraction": "0 to 1",
    "new_map_bytes": "size of a file's map",
    "has_stacks": "whether the stacks of all threads follow",
    "exc_info": "a traceback, without values",
    "library": "the library's logger",
    "message": "the message's text",
}
