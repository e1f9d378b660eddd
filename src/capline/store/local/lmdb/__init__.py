"""The embedded store: one LMDB file, its lock, the checks before it is mapped, and its maintenance."""
