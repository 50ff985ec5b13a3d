"""Serving overhead: what the serving layer adds to each quantum over the bare forward.

Dual timing (paper, section 5): every quantum is timed inside, as the model's own pass, and outside,
by when the next one begins. What lies between is everything that is not the model.
"""
