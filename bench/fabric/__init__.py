"""Simulated fabric: 72 moves through a small cell, decided by the real core and by others."""
