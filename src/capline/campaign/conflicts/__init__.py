"""What scheduled campaigns do to each other, said exactly before anything is sent.

    planned    the campaigns that wait in a store, and whom each is for
    patterns   subjects who get the same: the same campaigns, in the same segments and zones, after the same past
    past       what the logs of their recipients hold now
    simulate   one subject of each pattern, decided by a limiter in memory
    find       all of it: who takes whose place

The rule: what is held already waits too, until its instant. The campaigns that share a log are decided in the order of
time, then priority, then name; one under several policies takes a place in the log of each. Where a limit refuses a
message, each campaign that has units in that limit's window is a taker of its place, once. A held message is decided
again at its `retry_after`, rounded up to a second, behind those held before it. One that yields loses its place to
those it leaves room for, and is decided again when the first of them is due.
"""
