"""CLI: `worldline`, for people at a terminal and for scripts (`--json`)."""
