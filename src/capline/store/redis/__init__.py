"""The store on Redis or Valkey: logs as packed values, decided by Lua scripts, one atomic step an attempt.

The path of a verb: `verbs` and `cluster.router` (what to send, no I/O) → a transport in `io` → back to these (what the
replies mean). They are generators that yield what to exchange, so the sync and the async store share all of them.
"""
