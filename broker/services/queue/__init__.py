"""The service `Queue`: lease, settle and look after the messages of queue topics."""
