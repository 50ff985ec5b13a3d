"""State: the tree that must move, its layout in a slot, its manifest and its digests.

Nothing here imports torch except `tree`, `harvest`, `arrange`, `view` and `fingerprint`, so that
services which only route manifests start without it.
"""
