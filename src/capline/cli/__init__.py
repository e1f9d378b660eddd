"""The command line: parse, call, render. Every command that answers can answer in JSON; bad input exits 2 with one line."""
