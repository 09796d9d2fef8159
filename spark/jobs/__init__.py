"""Jobs that people run with Spark and RaftMQ: archive, replay, audit, mirror. Start with `main.py`."""
