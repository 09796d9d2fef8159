"""``python -m raftmq``: the same command as ``raftmq``, for places where scripts are not on the path."""

from raftmq.extras import main

if __name__ == "__main__":
    main()
