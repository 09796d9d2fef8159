"""Agree on the tasks that may write, on the names under which they write, and on the end of earlier runs."""
