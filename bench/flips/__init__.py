"""Flips: single bits of a running world's caches, and who ever sees them."""
