"""Pure functions over logs: the executable specification that every store is compared with.

`rule` is where to begin: it states the rule, and names the modules that have the rest of it.
"""
