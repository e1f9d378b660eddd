"""The embedded store under writers that are killed, and under a disk that loses its power.

python -m proof.crashes                200 kills and 200 losses of power, and the controls, which have to fail
python -m proof.crashes --crashes 20   fewer

synced.c        preloaded into the writers: keeps a copy of the store's file as a disk would have it without its cache
fork_server.py  the process that the writers are forked from
opener.py       one process that is killed while it opens the store, at a line that is chosen
writer.py       one writer: asks, records each call before and after it, until it is killed
rounds.py       kills, loses power, reads what is left, and has the checker look at it
"""
