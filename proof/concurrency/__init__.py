"""Many callers on one key, at the same time, recorded and checked.

python -m proof.concurrency               every store; 2, 8 and 32 processes, 64 tasks, 64 threads; every limit
python -m proof.concurrency --only lmdb   what has this in its name
python -m proof.concurrency --only slots  the cases in which slots are taken as well
python -m proof.concurrency --only joint  attempts over several subjects
python -m proof.concurrency --only charges  with charges past the quota
python -m proof.concurrency --only moves  with slots that are given back, and others that move up

    cases.py    who calls what store under which limit
    calls.py    what one caller does next, by chance
    callers.py  all of them at once: processes, threads or tasks; what they recorded is checked
"""
