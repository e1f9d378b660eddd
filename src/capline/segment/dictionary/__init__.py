"""Text ids: the durable dictionary that gives each text a number."""
