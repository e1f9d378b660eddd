"""Policies that change between random steps, on every store beside the reference: the state machine, for long.

The tests run it with some thousand steps, the same each time; here they are others each time. A difference is shown as
the shortest list of steps that leads to it.
"""
