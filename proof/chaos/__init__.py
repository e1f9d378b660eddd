"""The failover experiment: what a cluster under load loses while its servers are killed, stopped and moved.

    python -m proof.chaos                       `make chaos`: every run of the table, about half an hour
    python -m proof.chaos --only wait_replicas  runs whose name holds this text
    python -m proof.chaos --short               the runs of the tests, sixty seconds of load

A cluster of three primaries with a replica each, on loopback. Four processes make attempts at random instants, without
waiting for earlier answers (open loop), on 30 hot subjects and 10,000 cold ones. One attempt in twenty is made a second
time under its id, one hit in twenty is given back. Every few seconds there is a fault, drawn from the seed. Each
process records its calls; at the end the servers' content is compared with what was acknowledged. Two published
limiters get the same load as a control.

    callers.py   what is asked, and capline
    controls.py  the published sorted set, the package limits
    load.py      one process of the load
    faults.py    what is done to the cluster
    run.py       one run: load and faults together
    tally.py     records and content -> figures
    verbs.py     verb by verb: what waits for a replica, and what a failover takes back of the others
    table.py     figures -> what people read; what is expected of which run
"""
