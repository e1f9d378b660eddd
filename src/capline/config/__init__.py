"""The configuration store: policies, and limits of single subjects (overrides), beside the logs or on servers.

    configuration   the verbs: set, override, history, roll back
      commits       one change of theirs: planned by `changes`, written on the version that was read
      view          what a process knows: policies and a cache of overrides, kept up to date by polling the version
      records       the formats; `document` is a policy's, and makes versions into JSON
        backend     where it is stored: local (memory, lmdb) and servers (Redis, Valkey)

Decision 12 has the formats and why a change is never half in force.
"""
