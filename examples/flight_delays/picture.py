"""Draw results as a heat map, with a panel per airport, a row per carrier and a column per day."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from examples.flight_delays.results import Delay

EARLY_MINUTES: Final = 15.0
LATE_MINUTES: Final = 60.0
"""Delays that get the deepest blue and the deepest red."""


def draw(delays: Sequence[Delay], path: Path) -> None:
    """Draw at least one result into a PNG file."""
    figure_of(delays).savefig(path, dpi=100)


def figure_of(delays: Sequence[Delay]) -> Figure:
    """Return the picture of at least one result."""
    days = [date.fromisoformat(delay.day) for delay in delays]
    first, count = min(days), (max(days) - min(days)).days + 1
    carriers = {
        origin: sorted({delay.carrier for delay in delays if delay.origin == origin})
        for origin in sorted({delay.origin for delay in delays})
    }
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    panels = figure.subplots(
        len(carriers), 1, sharex=True, squeeze=False, height_ratios=[len(names) for names in carriers.values()]
    )[:, 0]
    months = [day for day in range(count) if day == 0 or (first + timedelta(day)).day == 1]
    colors = ScalarMappable(TwoSlopeNorm(0.0, -EARLY_MINUTES, LATE_MINUTES), "RdBu_r")
    for panel, (origin, names) in zip(panels, carriers.items(), strict=True):
        means = mean_delays(delays, origin, names, first, count)
        panel.imshow(
            means,
            cmap=colors.cmap,
            norm=colors.norm,
            aspect="auto",
            interpolation="nearest",
        )
        panel.set_facecolor("lightgrey")
        panel.set_ylabel(origin)
        panel.set_yticks(range(len(names)), names, fontsize=7)
    panels[-1].set_xticks(months, [f"{first + timedelta(day):%d %b}" for day in months])
    figure.colorbar(colors, ax=list(panels), extend="both", label="minutes", shrink=0.6)
    flights = sum(delay.flights for delay in delays)
    figure.suptitle(f"Mean delay of {flights:,} departures from New York City, {first.year}, by day and carrier")
    return figure


def mean_delays(
    delays: Sequence[Delay], origin: str, carriers: Sequence[str], first: date, days: int
) -> NDArray[np.float64]:
    """Return one airport's results in minutes, carriers x days, with NaN where there is no result."""
    rows = {carrier: row for row, carrier in enumerate(carriers)}
    means = np.full((len(carriers), days), np.nan)
    for delay in delays:
        if delay.origin == origin:
            means[rows[delay.carrier], (date.fromisoformat(delay.day) - first).days] = delay.mean_delay
    return means
