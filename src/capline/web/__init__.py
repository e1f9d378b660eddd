"""Limits on requests that come in: a rule a line, one decision a request, honest headers.

    from capline.web import Rule, key

    key      who is limited: the address, a header, anything of the request
    rule     a policy and whom it limits; the attempts of one request
    gate     the settings of an app; one visit for each request: enter, headers, leave
    answer   429 and 503 as problem documents

    asgi     Starlette, FastAPI, Litestar, WebSockets        flask    Flask
    fastapi  routes by dependencies                          django   Django, sync and async; Django REST framework
    wsgi     Pyramid, Bottle, any WSGI app

Each face is a module of its own, so that nobody needs a framework that they do not use.

The rule: all rules of one request are one attempt. It is allowed under each of them, or it consumes of none.
"""

from capline.web import key
from capline.web.rule import Rule

__all__ = ["Rule", "key"]
