"""Campaigns across workers: the queue, who fills it and who takes from it."""
