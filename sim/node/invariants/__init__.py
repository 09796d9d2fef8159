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
| `QuarantinedSilent`: a damaged replica does not vote, acknowledge, lead or serve | `quarantine.py` |
| `BudgetsHold`: nothing grows beyond its limit, but for one piece held alone; all of it is given back | `budgets.py` |
| `RetentionKeeps`: records go only on request, or when they are old | `retention.py` |
| `OneOwner`, `FenceHolds`, `CommittedForward`, `SessionKept`: what members of a group rely on | `group_ownership.py` |

Beside them: `NoDefect` (`../checker.py`), an internal rule of the product that broke without a fault that explains it; `History.…`
(`../run.py`), what the history checker found in what clients were told. That no group is without a leader, and everything else that must be
there again after healing, is liveness: `../run.py`.
"""
