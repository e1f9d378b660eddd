"""Several subjects in one attempt."""
