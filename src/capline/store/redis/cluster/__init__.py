"""Which server gets a call, and what becomes of a call that was not answered. No I/O."""
