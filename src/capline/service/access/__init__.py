"""Who may ask, and what is told of who asked: tokens, the guard before each handler, the access log, traces."""
