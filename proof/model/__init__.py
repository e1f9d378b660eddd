"""Every interleaving of a few callers, over the rule itself: decisions, slots, refunds and charges in one model.

    python -m proof.model      every scope, and every fault that is seeded in the rule; exit 1 where a promise is broken

Three callers each make a few calls of any kind, in any order; between any two of them time may pass, jump or step back,
an answer may be lost and asked for again, and a stale log may be swept away. Each state is reached once, by the
shortest way. What the callers were told is kept beside the log and apart from it, and every answer is judged by that
alone.

    rule.py     the rule as capline has it (`capline.window`), behind the verbs that callers have
    faults.py   the same with one fault each, which the model has to find
    promises.py what an answer has to be, by what was told before
    explore.py  the states, and the way through all of them
    joint.py    the same for attempts over two subjects, with faults of their own
"""
