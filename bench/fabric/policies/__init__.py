"""Policies: who decides on the offers; one file each."""
