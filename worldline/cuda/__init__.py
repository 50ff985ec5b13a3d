"""CUDA: device memory, streams, and kernels that are compiled at run time.

Every module imports without a driver, a device or the CUDA packages; whatever then needs a device
raises `Unavailable` with a reason. `availability` answers beforehand.
"""
