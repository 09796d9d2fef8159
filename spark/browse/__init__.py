"""Read the messages that queue topics have now, as a table."""
