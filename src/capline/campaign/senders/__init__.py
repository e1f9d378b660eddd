"""Senders: who takes a campaign's messages. The protocol, and three that come with capline: file, webhook, smtp."""
