"""What a run has done: each step on disk before the next one acts."""
