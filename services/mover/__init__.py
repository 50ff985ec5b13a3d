"""The mover service."""
