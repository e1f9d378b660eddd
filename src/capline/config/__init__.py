"""The configuration store: policies, and limits of single subjects (overrides), beside the logs or on servers.

    configuration   the verbs: set, override, history, roll back; each one commit
      view          what a process knows: policies, a cache of overrides, followed by polling one version
      records       what is written, byte by byte
        backend     where it is written: local (memory, lmdb) and servers (Redis, Valkey)

Decision 12 has the formats and why a change is never half in force.
"""
