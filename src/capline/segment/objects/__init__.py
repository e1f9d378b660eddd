"""Object stores, on a local disk or over a network, behind the same verbs."""
