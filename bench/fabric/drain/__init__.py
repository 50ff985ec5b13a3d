"""Drain: bulk moves in planned rounds, alone and with interactive moves in between."""
