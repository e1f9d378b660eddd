"""Campaigns across workers: the queue, what fills it (`enqueue`) and what empties it (`worker`)."""
