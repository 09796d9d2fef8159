"""Provide the jobs that users run with Spark and RaftMQ: archive, compact, replay, audit and mirror. Start with `main.py`."""
