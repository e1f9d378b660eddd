"""Limits for Flask: for all requests, and more for single views.

    cap = Capline(limiter, rules=[Rule("ip", key.ip())])
    cap.init_app(app)
    @app.post("/login")
    @cap.limit("login", key=lambda request: request.form.get("username"))

A request's view is known before it is decided, so the rules of the app and of the view are one decision. It is decided
before functions of `before_request` that are registered later.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Unpack

from capline.limiter.limiter import Limiter
from capline.limiter.steps import run
from capline.model.errors import CaplineError, InvalidTypeError, PolicyError
from capline.web.gate import Gate, Refused
from capline.web.rule import Fields, Rule

try:
    import flask
except ImportError as error:
    raise CaplineError("capline.web.flask needs Flask: pip install flask") from error

from capline.model.subject import Subject
from capline.web.answer import Refusal
from capline.web.gate import Options, Visit

RULES = "_capline_rules"
EXEMPT = "_capline_exempt"
BELOW = "_capline_below"
V = TypeVar("V", bound="Callable[..., Any]")


class Capline:
    """The limits of a Flask app. `limiter` is a `Limiter`, and stays open; for the options see `Gate`."""

    def __init__(
        self, limiter: Limiter, rules: Sequence[Rule] = (), app: flask.Flask | None = None, **options: Unpack[Options]
    ) -> None:
        self._gate = Gate(limiter, Limiter, rules, **options)
        if app is not None:
            self.init_app(app)

    def init_app(self, app: flask.Flask) -> None:
        """Limit this app; raises if another `Capline` does so already."""
        if "capline" in app.extensions:
            raise PolicyError(f"app {app.name!r} has a Capline already; give that one all rules")
        app.extensions["capline"] = self
        app.before_request(self._before)
        app.after_request(self._after)
        app.teardown_request(self._teardown)
        app.register_error_handler(Refused, lambda refused: _response(refused.refusal))

    def limit(
        self, policy: str, key: Subject | Callable[[flask.Request], Any], **fields: Unpack[Fields[flask.Request]]
    ) -> Callable[[V], V]:
        """One more rule for a view; the arguments are those of `Rule`. Above or below `@app.route`, and repeatable."""
        rule = Rule(policy, key, **fields)
        self._gate.check(rule)

        def around(view: V) -> V:
            if isinstance(view, type):
                raise InvalidTypeError("limit a class of views by its attribute: decorators = [cap.limit(...)]")
            rules = (rule, *getattr(view, RULES, ()))
            self._gate.check(*rules)

            @functools.wraps(view)
            def limited(*arguments: Any, **options: Any) -> Any:
                # Decided before the request already, unless another decorator hides the rule from Flask.
                if getattr(flask.g, "capline_visit", None) is not None:
                    refusal = self._enter((rule,))
                    if refusal is not None:
                        raise Refused(refusal)
                return flask.current_app.ensure_sync(view)(*arguments, **options)

            setattr(limited, RULES, rules)
            # Where @app.route is below, Flask knows the view by what is below us.
            below: Any = view
            setattr(limited, BELOW, below)
            while below is not None:
                setattr(below, RULES, (rule, *getattr(below, RULES, ())))
                below = getattr(below, BELOW, None)
            return limited  # pyright: ignore[reportReturnType] - it takes what the view takes

        return around

    def exempt(self, view: V) -> V:
        """A view under no rule."""
        setattr(view, EXEMPT, True)
        return view

    def _before(self) -> flask.Response | None:
        request = flask.request
        view = flask.current_app.view_functions.get(request.endpoint or "")
        flask.g.capline_visit = None
        if self._gate.is_exempt(request.path) or getattr(view, EXEMPT, False):
            return None
        flask.g.capline_visit = self._gate.visit()
        refusal = self._enter((*self._gate.rules, *getattr(view, RULES, ())))
        return None if refusal is None else _response(refusal)

    def _enter(self, rules: tuple[Rule, ...]) -> Refusal | None:
        visit: Visit = flask.g.capline_visit
        request: Any = flask.request
        # The request itself, not the proxy: a function of a rule may keep it.
        return run(visit.enter(request._get_current_object(), rules))  # noqa: SLF001 - werkzeug's name for it

    def _after(self, response: flask.Response) -> flask.Response:
        visit: Visit | None = getattr(flask.g, "capline_visit", None)
        if visit is not None:
            run(visit.leave(response))
            flask.g.capline_left = True
            response.headers.update(visit.headers())
        return response

    def _teardown(self, error: BaseException | None) -> None:
        """An exception that leaves the app, as in tests and debuggers, has no answer to look at."""
        visit: Visit | None = getattr(flask.g, "capline_visit", None)
        if visit is not None and error is not None and not getattr(flask.g, "capline_left", False):
            run(visit.leave(flask.Response(status=500)))


def _response(refusal: Refusal) -> flask.Response:
    return flask.Response(refusal.body, refusal.status, refusal.fields)
