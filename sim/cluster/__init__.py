"""Whole nodes in virtual time: the production broker and SDK on one thread, driven by one seed."""
