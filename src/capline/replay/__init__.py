"""Replay: what a policy would decide on real or simulated events, with time as an argument.

events    rows (subject, time, segment) out of a CSV file, checked one by one
blocks    the same rows as arrays, some megabytes of the file at once
ordered   and in order of time, however many there are
count     blocks to counts: what a policy would have done to them
recorded  the attempts that a service kept, among hits from elsewhere
engine    events in batches of one instant, to the decisions of any store
suggest/  from events to limits
demo/     what only `capline demo` needs
"""
