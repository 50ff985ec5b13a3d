"""GPU: what needs one GPU or two; everything here imports and says why not where there is none."""
