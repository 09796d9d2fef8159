"""State machine of a queue partition: pure and deterministic, as everything in `raftmq.fsm`."""
