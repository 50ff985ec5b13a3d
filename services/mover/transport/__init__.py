"""Transports: how a mover's bytes reach another mover's slot."""
