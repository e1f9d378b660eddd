"""The demo: a policy decides on the messages of eighteen months of real purchases, and the run is checked by counting.

recency   its segments: which customers are new, active, lapsing or churned on a given morning
messages  its calendar: which messages are due to which customers at which hour
record    every decision of a run, as columns
recount   checks the run by counting, from the record alone
figures   the record as tables and series
run       the whole demo, from the purchases to its result
charts    the result as chart descriptions
report    the result as one HTML page
"""
