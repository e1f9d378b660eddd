"""Access: tokens, the guard before each handler, the bound on new subjects, the access log, traces."""
