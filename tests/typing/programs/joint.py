"""One attempt over several subjects: which part refused is a number that the list of parts takes."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from typing import assert_type

from capline import Attempt, Joint, Limiter, LimitStatus, Policy

limiter = Limiter("memory://", [Policy("user", ["2/day"]), Policy("campaign", ["1/h"])])
parts = [Attempt("user", 42), Attempt("campaign", "spring")]
joint = limiter.decide_all(parts)
assert_type(joint, Joint)
assert_type(joint.hits, tuple[int | None, ...])
assert_type(limiter.refund_all(parts, joint.hits), int)
joint = limiter.peek_all(parts)
assert_type(parts[joint.binds].policy, str)
assert_type(joint.limits, tuple[tuple[LimitStatus, ...], ...])
assert_type(joint.headers("legacy"), dict[str, str])
