"""Measure RaftMQ. Each module describes its measurement. No test asserts a speed."""
