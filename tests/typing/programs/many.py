"""Many at once, as columns."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

from capline import CaplineError, Decision, Decisions, Limiter, Policy

limiter = Limiter("memory://", [Policy("promo", ["3/day"])])
many = limiter.decide_many("promo", np.arange(5))
assert_type(many, Decisions)
assert_type(many.allowed, NDArray[np.bool_])
assert_type(many.retry_after_us, NDArray[np.int64])
assert_type(many.errors, dict[int, CaplineError])
assert_type(many[0], Decision)
given: NDArray[np.bool_] = limiter.refund_many("promo", np.arange(5), many.hit)
rows: list[Any] = given.tolist()
