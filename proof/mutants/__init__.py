"""Limiters that are wrong on purpose, and right ones beside them: the checker has to tell which is which.

right.py      a right limiter, written to be read
in_memory.py  what becomes of it by one mistake each; those about slots and several subjects in in_memory_slots.py
on_redis.py   the mistakes that need a server and callers at the same time, as they are published
of_code       mistakes in capline's own code, one at a time, each with the test that has to catch it
history.py    what is asked of those in memory: the same history for all, on a clock that is told the time
"""
