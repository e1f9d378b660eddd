"""Frozen values, units, errors and clocks: the words that every folder speaks. Standard library and msgspec only."""
