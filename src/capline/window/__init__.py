"""Pure functions over logs: the executable specification that every store is compared with."""
