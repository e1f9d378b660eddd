"""Decides, from what every caller recorded, whether a limiter kept its promises. Shares no code with any limiter.

    python -m proof.checker RECORDS.jsonl ...        exit 0: kept; 1: broken, with each fault's line; 2: unreadable

It trusts the callers' records (what they asked, what they were told, and when) and nothing else. It rebuilds the logs
from the answers, in the order of the stamps, and judges every answer by the rule, written here a second time:

    at t an attempt of cost c is allowed if and only if, for every limit (quota q, window W),
    (units of hits with a stamp in (t - W, t])  +  c  <=  q

Where two calls overlap, either may have been first. The checker reports a fault only where no order explains the
answers, so a slow machine causes no false alarm.

    events.py    the records: their form, and how they are read
    hits.py      answers -> hits: whose stamp is whose, ids, reservations, calls without an answer, what the store
                 holds at the end
    timeline.py  one log as it grew, and the one look at it: from when on a cost would fit
    windows.py   no window over its quota, by stamps and by wall time alone; stamps within their calls, and in order
    refusals.py  every refusal and its retry_after, by replay in order
    joints.py    attempts over several subjects: all or nothing, and refused for one part at least
    report.py    what was found, in words
"""

from proof.checker.check import check
from proof.checker.events import Records, RecordsError, read
from proof.checker.report import Fault, Report

__all__ = ["Fault", "Records", "RecordsError", "Report", "check", "read"]
