"""What is allowed, by each limit and algorithm, at what time."""
