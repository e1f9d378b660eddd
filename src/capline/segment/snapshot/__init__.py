"""A snapshot: its files, written whole or not at all, read back whole and verified, or not at all."""
