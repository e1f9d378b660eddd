from fastapi import Depends, FastAPI, Header

from capline import AsyncLimiter, Policy
from capline.web import Rule, key
from capline.web.fastapi import CaplineMiddleware, Limited

policies = [Policy("ip", ["20/10s", "200/hour"]), Policy("search", ["3/minute"])]
app = FastAPI()
limiter = AsyncLimiter("lmdb://.capline/store", policies)
app.add_middleware(CaplineMiddleware, limiter=limiter, rules=[Rule("ip", key.ip())])


def current_user(x_user: str = Header()) -> str:
    return x_user


@app.get("/search", dependencies=[Depends(Limited("search", key=current_user))])
async def search() -> list[str]:
    return []
