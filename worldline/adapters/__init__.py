"""Adapters: the caches of other libraries as state trees, and back.

An adapter knows one library's objects and nothing of models. It imports that library only when it
is used: Worldline does not depend on it.
"""
