"""Limiters that are wrong on purpose, and right ones beside them: the checker has to tell which is which.

right.py      a right limiter, written to be read
in_memory.py  the same with one mistake each; those about slots and several subjects are in in_memory_slots.py
on_redis.py   published mistakes that need a server and concurrent callers
of_code       mistakes in capline's own code, by standard operators and by hand, which its tests have to catch
history.py    what those in memory are asked: the same history for all, on a manual clock
"""
