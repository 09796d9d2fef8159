"""Programs for queue topics."""
