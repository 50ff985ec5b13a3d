"""Admissibility: pure arithmetic that says whether a state can move in time over a path.

Equations are numbered as in the paper (arXiv 2607.10389), section 4.1.
"""
