"""Check: the conformance suite that the author of a model runs on it, `worldline check-engine`.

It runs a model as an engine would, in slots of its own memory, and asks of it what a move relies
on: that everything which decides the next frame is in the state tree, and nothing else is.
"""
