"""Without a terminal, progress is printed as lines."""

import io

from examples.demo_flights.progress import LINES_PER_STAGE, Reporter


def test_a_stage_prints_a_few_lines_and_the_last_one_is_complete() -> None:
    stream = io.StringIO()
    with Reporter(stream).stage("reading", 1000) as stage:
        for _ in range(100):
            stage.advance(10)
    lines = stream.getvalue().splitlines()
    assert len(lines) == LINES_PER_STAGE
    assert lines[-1] == "  reading: 1,000 of 1,000"
