"""Limiters that are wrong on purpose, and right ones beside them: the checker has to tell which is which.

in_memory.py  a right limiter in thirty lines, and what becomes of it by one mistake each
on_redis.py   the mistakes that need a server and callers at the same time, as they are published
of_code       mistakes in capline's own code, one at a time, each with the test that has to catch it
history.py    what is asked of those in memory: the same history for all, on a clock that is told the time
"""
