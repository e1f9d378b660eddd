"""Frozen values, units, errors and clocks: the vocabulary of every folder. Standard library and msgspec only."""
