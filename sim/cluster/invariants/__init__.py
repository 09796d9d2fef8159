"""The invariants of whole nodes, one file each, with the section of Ongaro's thesis or the promise behind it.

| invariant | file |
|---|---|
| `AcknowledgedNeverLost`: a record whose send succeeded is at the acknowledged offset, and readable until it is trimmed | `acknowledged.py` |
| `StateMachineSafety`, `OffsetsDense`: one entry per index, and offsets without gaps that never change | `committed_log.py` |
| `CommittedOnDisk`: the entries that a disk names as committed are on it and committed, after every write, and its commit index never goes back | `committed_on_disk.py` |
| `HighWatermarkMonotone`: on a replica, high watermark and start of the log never go back | `high_watermark.py` |
| `CommittedReads`: consumers receive only committed records, undamaged | `reads.py` |
| `ExactlyOnce`: a record of an idempotent producer is written once, and its batches are in order | `exactly_once.py` |
| `RefusedNeverApplied`: a record whose send failed definitely is never in the log | `definite_failures.py` |
| `EqualState`: replicas with equal applied index have byte-equal state | `replica_state.py` |
| `RowLevels`: no row has a field that the cluster's feature level does not permit yet | `row_levels.py` |
| `LevelIsSupported`, `SilentAboveItsLevel`: the level rises only to one that every broker knows, and any other broker is silent | `../upgrades/roller.py` |
| `FramesAreUnderstood`: no broker gets a frame of a later wire version than its own | `../upgrades/roller.py` |
| `AppliedOnce`: each index is applied once and in order | `applied_once.py` |
| `ElectionSafety`: a group has one leader in a term | `../../core/invariants/election_safety.py` |
| `StaleLeaderStepsDown`: a leader that has a successor stops leading by itself | `stale_leaders.py` |
| `RestIsQuiet`: nothing is due in a replica whose ticks are left out | `resting.py` |
| `VoteOnce`: a replica votes once in a term | `votes.py` |
| `VoteDurable`, `AckDurable`: votes and acknowledgements leave only when the disk holds them | `durable_answers.py` |
| `RequestDurable`: the term, the own vote and the log end in a vote request are on disk | `durable_answers.py` |
| `AnswerOfRound`: an answer to an earlier round of (pre-)vote requests is not counted | `../../core/invariants/votes.py` |
| `NewVotersAnswer`: a replica gets a vote only while its leader reaches its node | `new_voters.py` |
| `QuarantinedSilent`: a damaged replica does not vote, acknowledge, lead or serve | `quarantine.py` |
| `OnlyCopiesRefused`: no broker gives up a data directory that is no copy | `refused_copies.py` |
| `OnlyRemovedLeave`: no broker takes itself for removed unless the metadata has removed it | `removals.py` |
| `RemovedHaveNoVote`: no empty broker is removed while the metadata's group counts its vote | `removals.py` |
| `BoundedRestart`: opening checks no entry that the clean point on the disk covers | `bounded_restart.py` |
| `ServedOrReported`, `DefectStays`: a node serves each of its replicas or reports that it does not, and a defect ends no process | `served.py` |
| `ClientErrorsAreExplained`: each error that a client gets is one that a fault, or another client, explains | `client_errors.py` |
| `FailedCommitEndsBroker`: a broker whose commit failed ends itself | `failed_commits.py` |
| `CallsHaveNoDefect`: no call ends with an error of the program that no fault explains | `failed_calls.py` |
| `BudgetsHold`: nothing exceeds its limit, except one piece held alone, and everything is released | `budgets.py` |
| *FreedSpaceReturns*: the space of deleted records is free again (judged after healing, so it is liveness) | `space.py` |
| `TimeSearchExact`: a search by timestamp finds the batch that a look at every entry finds | `time_search.py` |
| `RetentionKeeps`: records are deleted only on request, or when they are old by the correct time | `retention.py` |
| `NotStampedOld`: no record's append time is before its acceptance | `retention.py` |
| `NothingForgotten`: producers, names and offsets are remembered for days | `memory.py` |
| `OneOwner`, `FenceHolds`, `CommittedForward`, `SessionKept`: the promises to members of a group | `group_ownership.py` |
| `CountsHold`: the counts of a queue partition equal a recount; `EqualState` for a queue's memory and disk | `queue_state.py` |
| `RowsAgree`, `BodiesStay`: the durable rows of a queue describe the same messages, and each message's body is found | `queue_rows.py` |
| `RowsNotAhead`: the rows on disk are never of a later state than that of the machine that reads them | `queue_state.py` |
| `WorkBounded`: no entry of a queue touches more messages than it may | `queue_work.py` |
| `SettlementsFirst`: no settlement is refused because a lease of its entry has used the work up | `settlements_first.py` |
| `CopiesAreDeaths`, `CopiedOnce`, `RecordedAfterCopied`: each dead message is in the dead letter topic once, in order, before that is recorded | `dead_letters.py` |
| `QueueClockHolds`: a queue's clock never goes back, and is near the correct time | `queue_clock.py` |
| `OneFiring`: a schedule fires once per due time, not before it, and only in its newest version | `queue_firings.py` |
| `FairTurns`: with round robin nobody with something leasable waits for more turns of others than it may | `queue_turns.py` |
| `OldGroupSilent`: a group that was replaced after it had lost its majority is never served again | `recoveries.py` |
| `GivenUpMovesAreUndone`: a partition whose move is given up has the replicas of before | `reverted_moves.py` |
| `MovesKeepTheirRate`: copies for planned moves are not sent faster than the cluster's rate | `pace.py` |
| `SettingsAreKept`: a change of run-time settings has exactly its effect on the metadata | `settings.py` |
| `NoDefect`: no internal rule breaks, and no broker ends or stays down, without a fault that explains it | `../checker.py` |

`History.…` and `Queue.…` (`../run.py`) are not in these files: an anomaly that a history checker found in the answers to clients. Liveness is checked in `../run.py`: after
healing every group has a leader, and everything works again.
"""
