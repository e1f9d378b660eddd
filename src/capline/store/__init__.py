"""Where logs live: one protocol, one module a store, chosen by URL."""
