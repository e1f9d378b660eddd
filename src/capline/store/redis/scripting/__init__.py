"""From attempts to script calls and from replies to decisions, with the Lua itself. No I/O."""
