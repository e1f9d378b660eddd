"""The store on Redis or Valkey: logs as packed values, decided by Lua, one step an attempt.

A verb's way: `engine` (what to ask, no I/O) → a `transport` (bytes out, bytes in) → `engine` (what was answered). The
engine is generators that yield what is to be exchanged, so the synchronous and the asynchronous store share all of it.
"""
