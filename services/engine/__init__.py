"""The engine service: one process per device, runs sessions and owns the schedule of quanta."""
