"""Hold what every other part of the broker uses: configuration, limits, clocks, errors, logs and counters."""
