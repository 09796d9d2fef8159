"""Run ``python -m raftmq.spark archive|compact|replay|audit|mirror …``, the command line in `raftmq.spark.jobs.main`."""

from raftmq.spark.jobs.main import main

if __name__ == "__main__":
    raise SystemExit(main())
