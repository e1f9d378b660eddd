from flask import Flask

from capline import Limiter, Policy
from capline.web import Rule, key
from capline.web.flask import Capline

limiter = Limiter("lmdb://.capline/store", [Policy("ip", ["20/10s", "200/hour"]), Policy("search", ["3/minute"])])
app = Flask(__name__)
cap = Capline(limiter, rules=[Rule("ip", key.ip())], on_error="deny")
cap.init_app(app)


@app.get("/search")
@cap.limit("search", key=key.header("X-User"))
def search() -> list[str]:
    return []
