"""The command line: parse, call, render. Whatever answers can answer in JSON; bad input exits 2 with one line."""
