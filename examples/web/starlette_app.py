from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from capline import AsyncLimiter, Policy
from capline.web import Rule, key
from capline.web.asgi import CaplineMiddleware


async def search(_: object) -> PlainTextResponse:
    return PlainTextResponse("nothing found")


limiter = AsyncLimiter("lmdb://.capline/store", [Policy("ip", ["20/10s"]), Policy("search", ["3/minute"])])
rules = [Rule("ip", key.ip()), Rule("search", key.header("X-User"), refund_if=range(500, 600))]
app = Starlette(routes=[Route("/search", search)])
app.add_middleware(CaplineMiddleware, limiter=limiter, rules=rules, headers="both", exempt=["/healthz"])
