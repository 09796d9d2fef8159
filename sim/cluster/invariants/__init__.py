"""What must hold of whole nodes, one file each, with the section of Ongaro's thesis or the promise it is about.

| invariant | file |
|---|---|
| `AcknowledgedNeverLost`: a record whose send succeeded is where the producer was told, and readable until it is trimmed | `acknowledged.py` |
| `StateMachineSafety`, `OffsetsDense`: one entry at an index, offsets without gaps that never change | `committed_log.py` |
| `HighWatermarkMonotone`: on a replica high watermark and start of the log never go back | `high_watermark.py` |
| `CommittedReads`: only committed records are handed out, undamaged | `reads.py` |
| `ExactlyOnce`: a record of an idempotent producer is there once, its batches in order | `exactly_once.py` |
| `RefusedNeverApplied`: what failed definitely is never in the log | `definite_failures.py` |
| `EqualState`: equal applied index, byte-equal state | `replica_state.py` |
| `AppliedOnce`: each index is applied once and in order | `applied_once.py` |
| `ElectionSafety`: a group has one leader in a term | `../../core/invariants/election_safety.py` |
| `StaleLeaderStepsDown`: a leader that was succeeded stops leading by itself | `stale_leaders.py` |
| `VoteOnce`: one vote in a term | `votes.py` |
| `VoteDurable`, `AckDurable`: votes and acknowledgements leave when the disk holds them | `durable_answers.py` |
| `RequestDurable`: a vote is asked for with a term, an own vote and a log end that are on disk | `durable_answers.py` |
| `AnswerOfRound`: an answer to an earlier asking for (pre-)votes is not counted | `../../core/invariants/votes.py` |
| `QuarantinedSilent`: a damaged replica does not vote, acknowledge, lead or serve | `quarantine.py` |
| `BoundedRestart`: opening checks no entry that the clean point on the disk covers | `bounded_restart.py` |
| `ServedOrReported`, `DefectStays`: what a node should serve it serves or says it does not; a defect ends no process | `served.py` |
| `BudgetsHold`: nothing grows beyond its limit, but for one piece held alone; all of it is given back | `budgets.py` |
| *FreedSpaceReturns*: what deleted records took is room on the disk again (judged after healing, so it is liveness) | `space.py` |
| `RetentionKeeps`: records go only on request, or when they are old by the right time | `retention.py` |
| `NotStampedOld`: no record's append time is before it was taken | `retention.py` |
| `NothingForgotten`: producers, names and offsets are remembered for days | `memory.py` |
| `OneOwner`, `FenceHolds`, `CommittedForward`, `SessionKept`: what members of a group rely on | `group_ownership.py` |

Beside them: `NoDefect` (`../checker.py`), an internal rule of the product that broke without a fault that explains it; `History.…`
(`../run.py`), what the history checker found in what clients were told. That no group is without a leader, and everything else that must be
there again after healing, is liveness: `../run.py`.
"""
