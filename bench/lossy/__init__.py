"""Lossy: a running world's state approximated, and what its viewer sees of it."""
