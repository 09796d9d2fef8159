"""Run replicas of Raft groups: step their cores, write their logs, and send and install snapshots."""
