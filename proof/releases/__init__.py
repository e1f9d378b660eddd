"""A process of the release before beside one of this release, on the same logs: each answer is the reference's.

git archive REVISION src | tar -x -C /tmp/before
python -m proof.releases --before /tmp/before/src                 on Redis, Valkey and lmdb, as a rolling update has it
python -m proof.releases --before /tmp/before/src --forms next    this release already begins its new forms

Long logs of hits, with costs, ids, slots, charges, refunds and settlements; now nearly all of one process, now of both.

caller.py   what the release before is asked, in a process of its own
"""
