"""Which server gets a call, and what follows when a call is not answered. No I/O."""
