"""How the service runs: its settings (a file, the environment, options), listeners, workers, reloading."""
