"""Replay: what a policy would decide on real or simulated events, with time as an argument.

    events    rows (subject, time, segment) out of a CSV file, checked one by one
    blocks    the same rows as arrays, in order of time, some megabytes of the file at once
    count     blocks to counts: what a policy would have done to them
    engine    events in batches of one instant, to the decisions of any store
    recency   the demo's segments: which customers are new, active, lapsing or churned on a given morning
    messages  the demo's calendar: which messages are due to which customers at which hour
    record    every decision of a run, as columns
    recount   checks the run by counting, from the record alone
    figures   the record as tables and series
    demo      the whole demo, from the purchases to its result
    charts    the result as chart descriptions
    report    the result as one HTML page

`events`, `blocks` and `count` serve any file of events (`capline replay`); the rest is the demo (`capline demo`).
"""
