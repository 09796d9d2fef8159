"""Hold what every other part of the SDK uses: settings, argument checks, background tasks, logs and metrics."""
