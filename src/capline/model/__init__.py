"""Frozen values, units, errors and clocks: the words that every other folder speaks. Standard library and msgspec only."""
