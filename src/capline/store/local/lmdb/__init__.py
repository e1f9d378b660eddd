"""The embedded store: one LMDB file, its lock, what is checked before it is mapped, and what looks after it."""
