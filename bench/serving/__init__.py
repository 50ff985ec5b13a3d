"""Simulated serving: the engine's own schedule and others on a device with the paper's quanta."""
