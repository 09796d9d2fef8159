"""`MetadataLog`: a metadata state machine that applies commands one by one."""

from raftmq.fsm import metadata_commands as mc
from raftmq.fsm.metadata import Metadata

from tests.support.fsm.histories import LogBuilder, register


class MetadataLog:
    """A metadata state machine with its log, for a cluster with this number of nodes. 0 means no cluster yet."""

    def __init__(self, nodes: int) -> None:
        self.log = LogBuilder()
        self.state = Metadata()
        if nodes:
            self.run(mc.InitializeCluster("c1", 1, "u1"))
        for number in range(1, nodes + 1):
            self.run(register(f"u{number}"))

    def run(self, command: mc.MetadataCommand) -> mc.MetadataResult | None:
        """Apply a command and return its result."""
        return self.state.apply(self.log.metadata(command))

    def code(self, command: mc.MetadataCommand) -> int | None:
        """Apply a command. Return None, or the code of its rejection, after checking that the rejection changed nothing."""
        before = self._rows()
        result = self.run(command)
        if not isinstance(result, mc.Rejected):
            return None
        assert self._rows() == before, "a rejected command changes nothing"
        assert result.message
        return result.code

    def _rows(self) -> list[tuple[bytes, bytes]]:
        """Return all rows except the clock's, which changes with every command."""
        clock = self.state._tables.expiry.tag
        return [row for row in self.state.rows() if row[0][0] != clock]
