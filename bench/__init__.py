"""Measurements. Each module says what it measures and how; no test asserts a speed."""
