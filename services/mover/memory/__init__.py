"""Slot memory: the bytes of one slot, in host memory or on a device."""
