"""The serving cells on one real engine: its own loop, its own worker, and other choosers in it."""
