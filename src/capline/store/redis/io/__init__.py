"""Bytes out and in: the URL, the client library's connections, one transport that blocks and one that is awaited."""
