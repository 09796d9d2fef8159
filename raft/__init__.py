"""The pure consensus core: one `RaftCore` per group."""
