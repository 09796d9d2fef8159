"""`MetadataLog`: a metadata state machine that commands are given to, one entry after the other."""

from raftmq.fsm import metadata_commands as mc
from raftmq.fsm.metadata import Metadata

from tests.support.fsm.histories import LogBuilder, register


class MetadataLog:
    """A metadata state machine with its log; of a cluster of so many nodes, or (0) of none yet."""

    def __init__(self, nodes: int) -> None:
        self.log = LogBuilder()
        self.state = Metadata()
        if nodes:
            self.run(mc.InitializeCluster("c1", 1, "u1"))
        for number in range(1, nodes + 1):
            self.run(register(f"u{number}"))

    def run(self, command: mc.MetadataCommand) -> mc.MetadataResult | None:
        """Apply it; what it gave."""
        return self.state.apply(self.log.metadata(command))

    def code(self, command: mc.MetadataCommand) -> int | None:
        """Apply it; the code that it was rejected with, having changed nothing, or None."""
        before = self._rows()
        result = self.run(command)
        if not isinstance(result, mc.Rejected):
            return None
        assert self._rows() == before, "a rejected command changes nothing"
        assert result.message
        return result.code

    def _rows(self) -> list[tuple[bytes, bytes]]:
        """All rows but the clock's, which goes on with every command."""
        clock = self.state._tables.expiry.tag
        return [row for row in self.state.rows() if row[0][0] != clock]
