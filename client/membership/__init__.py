"""Take part in a consumer group: join it, send its heartbeats and follow its assignments."""
