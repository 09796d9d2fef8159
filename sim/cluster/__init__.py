"""Whole nodes in virtual time: the production broker and SDK, one thread, one seed."""
