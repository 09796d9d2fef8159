"""The ``raftmq`` command. Commands import what they need when they run, so that ``raftmq --version`` stays quick."""
