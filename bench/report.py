"""Turn samples into rows with median, spread, target and RaftMQ's ratio to each peer, as a table and as JSON.

Must not measure. A ratio compares medians of the same run and is above 1 where RaftMQ is better, for rates and for times.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from bench.runner import Failure, Sample
from bench.workloads import Figure

RAFTMQ = "RaftMQ"
HEADER: tuple[str, ...] = ("workload", "figure", "system", "n", "median", "min – max", "target", "RaftMQ is")


@dataclass(frozen=True, slots=True)
class Row:
    """Hold one figure of one system."""

    workload: str
    figure: str
    unit: str
    system: str
    values: list[float]
    median: float
    minimum: float
    maximum: float
    target: float | None
    """RaftMQ's target. None on rows of peers."""
    is_met: bool | None
    """Whether the median meets the target. None without a target."""
    ratio: float | None
    """On rows of peers, how many times better RaftMQ's median is."""


@dataclass(frozen=True, slots=True)
class Report:
    """Hold the results of one run of the benchmarks."""

    machine: dict[str, object]
    systems: dict[str, str]
    """Name → versions."""
    rows: list[Row]
    samples: list[Sample]
    failures: list[Failure]
    notes: list[str]
    """Notes on peers and rows that were left out, with the reasons, and on the limits of the figures."""

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def rows_of(figures: Mapping[str, Sequence[Figure]], samples: Iterable[Sample]) -> list[Row]:
    """Return rows in the order of `figures` (workload → its figures), with RaftMQ first among the systems."""
    values: dict[tuple[str, str, str], list[float]] = {}
    systems: dict[str, None] = {RAFTMQ: None}
    for sample in samples:
        systems[sample.system] = None
        for name, measured in sample.figures.items():
            values.setdefault((sample.workload, name, sample.system), []).extend(measured)
    rows: list[Row] = []
    for workload, known in figures.items():
        for figure in known:
            ours = values.get((workload, figure.name, RAFTMQ))
            found = ((system, values.get((workload, figure.name, system))) for system in systems)
            rows += [_row(workload, figure, system, theirs, ours) for system, theirs in found if theirs]
    return rows


def _row(workload: str, figure: Figure, system: str, values: list[float], ours: list[float] | None) -> Row:
    median = statistics.median(values)
    is_ours = system == RAFTMQ
    has_target = is_ours and figure.target is not None
    return Row(
        workload=workload,
        figure=figure.name,
        unit=figure.unit,
        system=system,
        values=values,
        median=median,
        minimum=min(values),
        maximum=max(values),
        target=figure.target if is_ours else None,
        is_met=figure.is_met(median) if has_target else None,
        ratio=None if is_ours or not ours else _ratio(figure, statistics.median(ours), median),
    )


def _ratio(figure: Figure, ours: float, theirs: float) -> float | None:
    better, worse = (ours, theirs) if figure.is_higher_better else (theirs, ours)
    return better / worse if worse else None


def table(figures: Mapping[str, Sequence[Figure]], rows: Sequence[Row]) -> str:
    """Return the rows as text, in columns."""
    signs = {
        (workload, figure.name): "≥" if figure.is_higher_better else "≤"
        for workload, known in figures.items()
        for figure in known
    }
    lines = [HEADER]
    last = ("", "")
    for row in rows:
        here = (row.workload, row.figure)
        lines.append(
            (
                row.workload if row.workload != last[0] else "",
                f"{row.figure}, {row.unit}".removesuffix(", ") if here != last else "",
                row.system,
                str(len(row.values)),
                number(row.median),
                f"{number(row.minimum)} – {number(row.maximum)}",
                f"{signs[here]} {number(row.target)}" if row.target is not None else "",
                _verdict(row),
            )
        )
        last = here
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    is_right = [column in (3, 4, 6) for column in range(len(HEADER))]
    return "\n".join(
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, is_right, strict=True)
        ).rstrip()
        for line in lines
    )


def _verdict(row: Row) -> str:
    if row.ratio is not None:
        return f"{row.ratio:.2f} x as good"
    return {None: "", True: "on target", False: "short of it"}[row.is_met]


def number(value: float) -> str:
    """Format a number for the table: no decimals from 100 on, one from 10 on, otherwise two."""
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
