"""Verbs that a capline service answers: the same attempts, as requests to its HTTP API."""
