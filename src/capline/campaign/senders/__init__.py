"""Senders deliver a campaign's messages: the protocol, and the built-in file, webhook and smtp."""
