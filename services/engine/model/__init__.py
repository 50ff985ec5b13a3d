"""The action-conditioned causal world model: pure torch, seeded weights, no service code."""
