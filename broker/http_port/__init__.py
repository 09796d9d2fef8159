"""Serve the HTTP port: health, readiness and metrics."""
