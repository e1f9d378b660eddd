"""The failover experiment: what a cluster under load loses while its servers are killed, stopped and moved.

    python -m proof.chaos                       `make chaos`: every run of the table, about half an hour
    python -m proof.chaos --only wait_replicas  runs whose name holds this text
    python -m proof.chaos --short               the runs of the tests, sixty seconds of load

A cluster of three primaries with a replica each, on loopback; four processes that ask at random instants, whatever
became of what they asked before (open loop); 30 hot subjects and 10,000 cold ones; one attempt in twenty is made a
second time under its id, one hit in twenty is given back. A fault at every so many seconds, drawn by the seed. Every
call is recorded by who made it, and in the end what the servers hold is compared with what was acknowledged. The same
load, drawn by the same seed, on two limiters that are published, as control.

    callers.py   what is asked, and capline
    controls.py  the published sorted set, the package limits
    load.py      one process of the load
    faults.py    what is done to the cluster
    run.py       one run: load and faults together
    tally.py     records and content -> figures
    table.py     figures -> what people read; what is expected of which run
"""
