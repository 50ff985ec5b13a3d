"""Bench: what Worldline moves and how fast, beside what others reach, in one table."""
