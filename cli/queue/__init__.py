"""The commands of ``raftmq queue``."""
