"""Replay: real or simulated events put to a policy, as fast as the store decides, with time as an argument.

    events    rows (subject, time, segment) out of a CSV file, checked one by one
    blocks    the same rows as arrays, in order of time, some megabytes of the file at once
    count     blocks to counts: what a policy would have done to them
    engine    events in batches of one instant, to the decisions of any store
    recency   the demo's segments: who is new, active, lapsing, churned on a given morning
    messages  the demo's calendar: which messages are due to whom at which hour
    record    every decision of a run, as columns
    recount   the same run judged once more, from the record alone
    figures   the record as the tables and series that people read
    demo      the whole demo, from the purchases to its result
    charts    the result as chart descriptions
    report    the result as one HTML page

`events`, `blocks` and `count` serve any file of events (`capline replay`); the rest is the demo (`capline demo`).
"""
