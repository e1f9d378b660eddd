"""Every mutant."""

from proof.mutants.of_code import callers, faces, local, redis, segments, window

__all__ = ["MUTANTS"]

MUTANTS = (*window.MUTANTS, *local.MUTANTS, *redis.MUTANTS, *segments.MUTANTS, *callers.MUTANTS, *faces.MUTANTS)
