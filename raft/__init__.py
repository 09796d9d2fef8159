"""Provide the pure consensus core: one `RaftCore` for each group."""
