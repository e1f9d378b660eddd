"""Pure functions over logs: the executable specification that every store is compared with.

Begin with `rule`: it states the rule, and names the modules with the rest of it.
"""
