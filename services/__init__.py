"""The four services. None imports another: they meet in protos only."""
