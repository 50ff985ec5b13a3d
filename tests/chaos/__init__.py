"""Chaos: worlds that play and change hands while the processes under them end and stand still.

`python -m tests.chaos --help`. Not a part of the test suite: what it does follows from a seed, when
it happens does not.
"""
