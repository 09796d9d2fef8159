"""The golden scripts print their expected output. `--rewrite` replaces it by the actual output, which you must read before you keep it."""

from __future__ import annotations

from pathlib import Path

import pytest
from raftmq.raft.core import RaftCore

from tests.raft.golden import Block, parse_script, render_script, run_script, script_paths


@pytest.mark.parametrize("path", script_paths(), ids=lambda path: path.stem)
def test_a_script_prints_its_expected_output(path: Path, rewrites: bool) -> None:
    text = path.read_text()
    blocks = parse_script(text)

    outputs = run_script(blocks)

    if rewrites:
        path.write_text(render_script(blocks, outputs))
        return
    for block, output in zip(blocks, outputs, strict=True):
        assert output == block.expected or not block.commands, f"{path.name}: {block.commands}"
    assert render_script(blocks, outputs) == text, f"{path.name} is not in its normal form"
    assert not any(line.startswith("error") for output in outputs for line in output)


def test_every_required_scenario_has_a_script() -> None:
    required = {
        "async_append_aba_race",
        "campaign",
        "check_quorum_stickiness",
        "disrupting_removed_replica",
        "joint_auto_leave",
        "lagging_commit",
        "leader_removed",
        "learner_must_vote",
        "pre_vote",
        "probe_and_replicate",
        "replace_two_for_two",
        "replicate_window_lost",
        "single_node",
        "slow_follower_after_compaction",
        "snapshot_success_by_append_response",
        "transfer_to_lagging_follower",
    }

    assert required <= {path.stem for path in script_paths()}


def test_the_aba_script_catches_the_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core that accepts completions of an earlier term applies an entry that was never committed."""
    blocks = parse_script((Path(__file__).parent / "scripts" / "async_append_aba_race.txt").read_text())
    monkeypatch.setattr(RaftCore, "_is_append_current", lambda _core, _token: True)

    outputs = run_script(blocks)

    assert any("apply [7/7 empty]" in line for output in outputs for line in output)
    assert [block.expected for block in blocks] != outputs


def test_a_wrong_output_is_detected() -> None:
    """The test itself works: a script with a wrong expectation fails."""
    blocks = [Block([], ["new-cluster 1", "campaign 1", "ready 1"], ["nonsense"])]

    assert run_script(blocks)[0] != blocks[0].expected
    assert parse_script(render_script(blocks, [["nonsense"]])) == blocks
