"""Policies: who gets the next quantum, as the engine decides it and as others do."""
