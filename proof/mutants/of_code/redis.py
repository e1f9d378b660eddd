"""In store/redis: the Lua that decides, what is sent and may be sent again, and the breaker."""

from proof.mutants.of_code.mutant import Mutant

__all__ = ["MUTANTS"]

LUA = "store/redis/scripting/lua"

MUTANTS = (
    Mutant(
        "long_log_never_trims",
        f"{LUA}/long.lua",
        "or n % 64 == 0 or",
        "or",
        "a long log grows without end",
        "tests/unit/store/redis/test_long_logs.py::test_a_long_log_is_trimmed_on_the_way",
    ),
    Mutant(
        "unit_tie",
        f"{LUA}/unit.lua",
        "      if quota - inside < left then left, tightest",
        "      if quota - inside <= left then left, tightest",
        "of limits with as much left another one is named than by the rule",
        "tests/conformance/test_server_stores.py::TestRedisClusterAsync::test_of_limits_with_as_much_left_the_first_is_named",
    ),
    Mutant(
        "long_log_tie",
        f"{LUA}/long.lua",
        "    if quota - used < left then left, tightest",
        "    if quota - used <= left then left, tightest",
        "of limits that are alike on a long log another one is named than by the rule",
        "tests/conformance/test_server_stores.py::TestRedisCluster::test_of_limits_that_are_alike_the_first_is_named",
    ),
    Mutant(
        "joint_tie",
        f"{LUA}/joint.lua",
        "    if remaining < left then left, tightest, place",
        "    if remaining <= left then left, tightest, place",
        "of parts that are alike another one is named than by the rule",
        "tests/conformance/test_server_stores.py::TestRedisClusterAsyncBucket::test_of_parts_that_are_alike_the_first_is_named",
    ),
    Mutant(
        "queue_is_jumped_on_a_server",
        f"{LUA}/rule.lua",
        "  if early > stamp or last > time then return stamp",
        "  if early > stamp then return stamp",
        "a plain decide goes before slots that others took",
        "tests/conformance/test_server_stores.py::TestRedis::test_a_slot_is_no_earlier_than_asked_and_nobody_is_given_one_before_it",
    ),
    Mutant(
        "midnight_is_the_old_day_on_a_server",
        f"{LUA}/limit_reader.lua",
        "  return period_starts(bound.zone, by[2], at) - 1",
        "  return period_starts(bound.zone, by[2], at)",
        "a hit at midnight itself is missing in what remains of the new day",
        "tests/conformance/test_server_stores.py::TestRedis::test_a_calendar_day_begins_at_midnight_where_the_subject_is",
    ),
    Mutant(
        "refund_of_any_age_on_a_server",
        f"{LUA}/refund.lua",
        "if stamp <= math.max(now, own.floor) - keep then return 0 end",
        "",
        "a hit that is out of every window is given back",
        "tests/conformance/test_server_stores.py::TestRedisClusterAsyncBucket::test_a_hit_out_of_every_window_is_not_refunded",
    ),
    Mutant(
        "sweep_keeps_what_is_out",
        f"{LUA}/sweep.lua",
        " + keep <= now",
        " + keep < now",
        "a log that no window reaches any more stays",
        "tests/conformance/test_server_stores.py::TestRedisAsyncBucket::test_sweep_removes_what_is_out_of_every_window_and_nothing_else",
    ),
    Mutant(
        "merge_ahead_on_a_server",
        f"{LUA}/merge.lua",
        "stamp > time + 1000000 then",
        "stamp >= time + 1000000 then",
        "a hit of the past from a clock a second ahead is left out",
        "tests/conformance/test_server_stores.py::TestRedisClusterBucket::test_what_is_known_old_or_ahead_is_left_out",
    ),
    Mutant(
        "joint_sent_again_for_its_last_id",
        "store/redis/scripting/requests.py",
        "named = named and attempt.fingerprint > 0",
        "named = attempt.fingerprint > 0",
        "a joint attempt of which only the last part has an id is sent again, and counts twice",
        "tests/unit/store/redis/test_requests.py::test_a_joint_attempt_may_be_sent_again_where_every_part_has_an_id",
    ),
    Mutant(
        "batch_sent_again_for_any_id",
        "store/redis/scripting/requests.py",
        "repeatable = not plain and all(attempt.fingerprint for attempt in own_attempts)",
        "repeatable = not plain and any(attempt.fingerprint for attempt in own_attempts)",
        "a batch of which some attempts have no id is sent again, and these count twice",
        "tests/unit/store/redis/test_requests.py::test_a_batch_may_be_sent_again_where_each_of_its_attempts_has_an_id",
    ),
    Mutant(
        "breaker_lets_everybody_try",
        "store/redis/cluster/breaker.py",
        "        self.open_until = now + self._pause_s\n        return False",
        "        return False",
        "each caller waits its deadline for a server that is away",
        "tests/unit/store/redis/test_breaker.py::test_when_the_pause_is_over_one_caller_tries_and_the_others_wait",
    ),
    Mutant(
        "breaker_forgets_no_failure",
        "store/redis/cluster/breaker.py",
        "        if self.failures:\n",
        "        if self.failures >= FAILURES:\n",
        "failures with answers between them open the breaker",
        "tests/unit/store/redis/test_breaker.py::test_failures_that_are_not_in_a_row_leave_it_closed",
    ),
    Mutant(
        "subjects_share_a_key",
        "store/redis/scripting/keys.py",
        '.replace(b"%", b"%25").replace(b"}", b"%7D")',
        '.replace(b"}", b"%7D")',
        "two subjects have one log",
        "tests/property/store/redis/test_keys.py::test_subjects_with_poison_in_them_are_subjects",
    ),
)
