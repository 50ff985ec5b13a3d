"""Worldline: moves live interactive world-model sessions between nodes, bit for bit."""
