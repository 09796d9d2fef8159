"""Invariants that hold across a whole cluster under all faults: one file each, with the section of the thesis that explains it.

| invariant | file | Ongaro's thesis |
|---|---|---|
| `ElectionSafety`: at most one leader per term | `election_safety.py` | figure 3.2, 3.4 |
| `LeaderGreatestIndex`: no log goes further in a term than that term's leader's | `leader_greatest_index.py` | 3.4, 3.5 |
| `LeaderVotes`: a leader votes in the configuration that it has applied | `election_safety.py` | 4.2.2 |
| `VoteOnce`, `VoteDurable`, `VoteQuorum`, `UpToDate`: one vote per term, kept, by a majority, for no shorter log | `votes.py` | 3.4, 3.6.1, 3.8 |
| `RequestDurable`: the term, the own vote and the log end in a vote request are on the candidate's disk | `votes.py` | 3.8 |
| `AnswerOfRound`: an answer to an earlier round of (pre-)vote requests is not counted | `votes.py` | ours |
| `MoreUpToDateCorrect`: a more up-to-date log holds what the other has committed | `more_up_to_date_correct.py` | 3.6.1, 3.6.3 |
| `LogMatching`: same index and term, same entry and same past | `log_matching.py` | figure 3.2, 3.5 |
| `DenseOffsets`: each entry starts at the offset where the one before it ended | `log_matching.py` | ours |
| `LogInv`: committed prefixes agree | `committed_log.py` | figure 3.2 (State Machine Safety) |
| `QuorumLog`: committed entries are durable on a quorum | `committed_log.py` | 3.5, 10.2.1 |
| `CommitOwnTerm`: leaders commit by counting in their own term only | `committed_log.py` | 3.6.2, figure 3.7 |
| `LeaderCompleteness`: a new leader has all committed entries | `leader_completeness.py` | figure 3.2, 3.6 |
| `CommittedIsDurable`, `AckDurable`, `StableIsDurable`: nothing is applied or acknowledged before it is durable | `durability.py` | 3.8 |
| `NoHole`, `ReadsDurable`: no entry is deleted before its state is durable, and only durable entries are read | `durability.py`, `disk.py` | 5.1 |
| `Monotone`: term, commit and applied index never go back | `monotone.py` | 3.3, 3.5 |
| `PreVoteKeepsTerm`: asking a pre-vote does not raise the term | `monotone.py` | 9.6 |
| `LeaderAppendOnly`: a leader never overwrites its own log, and never replaces it by a snapshot | `checker.py` | figure 3.2 |
| `SnapshotAlone`: entries to apply are not handed out beside a snapshot that replaces them | `checker.py` | 5.1 |
| `AppliedState`: same index, same state and membership | `applied_state.py` | figure 3.2 |
| `QuorumHeard`: a leader that has not heard a majority for two election timeouts has stepped down | `quorum_heard.py` | 6.2 |
| `LinearizableRead`: a read sees all entries that were committed when it was requested | `reads.py` | 6.4 |
| `Acknowledged`: an operation that was acknowledged to a client stays committed | `acknowledged.py` | 6.3 |
"""
