"""Peers: other movers of tensors, over the same payload; one file each."""
