"""Requests in, replies out: routes, bodies within bounds, forms, problem documents, and the description of it all."""
