"""The server store under faults, without servers: one seed plays a run, and the same seed plays it again.

    python -m proof.simulator --seeds 320     runs, and the wrong engines that must be found
    python -m proof.simulator --seed 17       one run with its trace

The store is the real one: limiter, verbs, router, breaker, connection pool. Simulated is what is below it: the event
loop's clock (clock.py), connections and what happens to bytes on them (network.py), servers that answer script calls by
`capline.window` (server.py, scripts.py), and the faults of servers (server_faults.py). callers.py asks and records;
resuming.py asks as the synchronous store does; run.py plays one seed and has `proof.checker` judge it; wrong.py has the
engines that must be found.
"""
