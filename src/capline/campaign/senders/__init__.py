"""Senders deliver a campaign's messages: the protocol, and the built-in ones."""
