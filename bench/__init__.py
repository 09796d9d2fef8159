"""Measurements. Each module says what it measures and how; nothing here is asserted by tests."""
