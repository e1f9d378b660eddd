"""Mistakes that no operator makes: another clock, a wrong key or order, a bound left out, what is sent again."""

from __future__ import annotations

from typing import NamedTuple

from proof.mutants.of_code.targets import SOURCE

__all__ = ["MUTANTS", "Mutant", "changed_text"]


class Mutant(NamedTuple):
    """`text` stands exactly once in the file and becomes `wrong`."""

    why: str
    """What would go wrong for a user; its name at the command line, too."""
    file: str
    """Below src/capline."""
    text: str
    wrong: str
    test: str
    """The node id of the test to catch it, below tests/."""


def changed_text(mutant: Mutant) -> str:
    """The file with the mistake; `ValueError` where its text does not stand there exactly once."""
    text = (SOURCE / mutant.file).read_text()
    count = text.count(mutant.text)
    if count != 1:
        raise ValueError(f"{mutant.why}: its text stands {count} times in {mutant.file}; change the mutant")
    return text.replace(mutant.text, mutant.wrong)


LAW, ON_SERVERS = "conformance/test_stores.py::TestMemory::", "conformance/test_server_stores.py::TestRedis::"
MUTANTS = (
    # The rule.
    Mutant(
        "what was used now counts from the last slot on",
        "window/charge.py",
        "stamp_from(logs, time_us, NEVER)",
        "stamp_from(logs, time_us, logs[0].log.newest_us())",
        LAW + "test_a_charge_counts_before_slots_that_are_taken",
    ),
    Mutant(
        "retry_after is of the limit that frees first, and then it is refused again",
        "window/answer.py",
        "            if fits_us > latest_us:",
        "            if fits_us < latest_us or latest_us == NEVER:",
        "conformance/test_oracle.py::test_a_right_one_breaks_none",
    ),
    Mutant(
        "where the clock stepped back, a part of a joint attempt leaves the time of its log behind",
        "window/joint.py",
        "        time_us = time_of(logs, now_us)\n        for number, bound",
        "        time_us = now_us\n        for number, bound",
        "conformance/test_oracle.py::test_a_right_one_breaks_none",
    ),
    Mutant(
        "a slot under several policies goes before slots that are taken under the second",
        "window/rule.py",
        "for bound in part]\n    time_us, newest_us = time_of(logs, now_us), newest_of(logs)",
        "for bound in part]\n    time_us, newest_us = time_of(logs, now_us), newest_of(parts[0])",
        LAW + "test_a_slot_comes_after_those_that_are_taken_in_any_of_its_logs",
    ),
    Mutant(
        "a refusal is told an instant behind stamps that were given back",
        "window/rule.py",
        "if self.logs[0].cost and any(bound.log.next_stamp(at_us) == at_us for bound in self.logs):",
        "if False:",
        LAW + "test_nobody_waits_for_instants_that_were_given_back",
    ),
    Mutant(
        "a hit that joins a sum is answered as if the sum stayed where it is",
        "window/recording.py",
        "return LogJoined(bound.log, stamp_us + 1) if joins else bound.log",
        "return bound.log",
        "property/store/test_fast_path.py::test_as_the_rule_answers",
    ),
    Mutant(
        "a hit at midnight itself is missing in what remains of the new day",
        "window/limit_reader.py",
        "return starts_us(table, self.limit.window_us, at_us) - 1",
        "return starts_us(table, self.limit.window_us, at_us)",
        LAW + "test_a_calendar_day_begins_at_midnight_where_the_subject_is",
    ),
    # Stores on this machine: pages, batches, receipts.
    Mutant(
        "pages of an erased log answer for the next one",
        "store/local/lmdb/store.py",
        "if known is None or known[0].epoch != epoch:",
        "if known is None:",
        "unit/store/local/test_long_logs.py::test_pages_of_an_erased_log_are_not_those_of_the_next",
    ),
    Mutant(
        "two hits of one instant in a batch are recorded under one stamp",
        "store/local/lmdb/store.py",
        "stamps.append(hits[row])\n                    cursor.put(keys[row]",
        "stamps.append(now_us)\n                    cursor.put(keys[row]",
        "property/store/test_fast_path.py::test_rows_of_a_batch_are_answered_as_one_by_one",
    ),
    Mutant(
        "a receipt answers for another zone",
        "store/receipts.py",
        "            rule.zone,\n            [(own.log",
        "            None,\n            [(own.log",
        LAW + "test_a_receipt_that_comes_with_another_question_is_a_conflict",
    ),
    Mutant(
        "a receipt answers for other segments",
        "store/receipts.py",
        'digest.update(b"" if batch.codes is None else batch.codes.astype("<u2").tobytes())',
        "pass",
        "conformance/test_stores.py::TestLmdb::test_to_a_receipt_a_list_and_an_array_of_the_same_ids_are_one_batch",
    ),
    Mutant(
        "a look at a clock that is ahead for a moment ends a reservation for good",
        "store/local/reservations.py",
        "end_and_carry(logs, self._stored, now_us, ColumnLog.copy_of, carry)",
        "end_and_carry(logs, self._stored, now_us, lambda log: log, carry)",
        LAW + "test_a_time_that_steps_back_ends_nothing_twice",
    ),
    Mutant(
        "a reservation ends not where nothing else of its subject is pending",
        "store/local/memory.py",
        "keep_reserved(self, compiled, subject, hit_us, bound_us or 0)",
        "pass",
        "property/store/test_fast_path.py::test_a_limiter_answers_as_one_without_fast_paths",
    ),
    Mutant(
        "a part of one unit among several is judged by the hits of a log of costs",
        "store/local/memory_units.py",
        "if log is None or log.before is not None or log.reserved:",
        "if log is None or log.reserved:",
        "property/store/test_fast_path.py::test_single_units_of_several_are_answered_together_as_by_the_rule",
    ),
    Mutant(
        "of several single units one that would go behind a slot goes before it",
        "store/local/memory_units.py",
        "if n == start or stamps[-1] != stamp_us:",
        "if n == start:",
        "property/store/test_fast_path.py::test_single_units_of_several_are_answered_together_as_by_the_rule",
    ),
    Mutant(
        "two parts on the same log count as one",
        "store/local/memory_units.py",
        "if reset_us >= LATEST_US or len(found) < at:",
        "if reset_us >= LATEST_US:",
        "property/store/test_fast_path.py::test_single_units_of_several_are_answered_together_as_by_the_rule",
    ),
    Mutant(
        "a joint attempt leaves the hits that are out of every window",
        "store/local/memory_units.py",
        "if oldest_us + widest_us <= stamp_us:",
        "if False:",
        "property/store/test_fast_path.py::test_hits_that_are_out_of_every_window_are_forgotten",
    ),
    Mutant(
        "the first units of a number count as one",
        "store/local/numbers_path.py",
        "(now_us,)), level or cost",
        "(now_us,)), level or 1",
        "property/store/test_fast_path.py::test_the_first_hits_of_a_subject_are_those_of_the_rule",
    ),
    Mutant(
        "the first hit of a subject takes what must stay free",
        "store/local/numbers_path.py",
        "if after < least or full_us >= LATEST_US:",
        "if after < 0 or full_us >= LATEST_US:",
        "property/store/test_fast_path.py::test_the_first_hits_of_a_subject_are_those_of_the_rule",
    ),
    Mutant(
        "a part that is recorded without being judged again has its id forgotten",
        "store/local/operations.py",
        "operation.cost, operation.fingerprint, now_us, now_us)",
        "operation.cost, 0, now_us, now_us)",
        "property/store/test_fast_path.py::test_a_limiter_answers_as_one_without_fast_paths",
    ),
    # Stores on servers: what is sent again, connections, keys.
    Mutant(
        "a joint attempt of which only the last part has an id is sent again, and counts twice",
        "store/redis/scripting/requests.py",
        "named = named and fingerprint > 0",
        "named = fingerprint > 0",
        "unit/store/redis/test_requests.py::test_a_joint_attempt_may_be_sent_again_where_every_part_has_an_id",
    ),
    Mutant(
        "a batch of which some attempts have no id is sent again, and these count twice",
        "store/redis/scripting/parts.py",
        "repeatable = not plain and all(operation.fingerprint for operation in turn)",
        "repeatable = not plain and any(operation.fingerprint for operation in turn)",
        "unit/store/redis/test_requests.py::test_a_batch_may_be_sent_again_where_each_of_its_attempts_has_an_id",
    ),
    Mutant(
        "a failover takes back what was settled, and more is admitted",
        "store/redis/steps.py",
        'if operation.kind in ("peek", "refund", "move") or',
        'if operation.kind in ("peek", "refund", "move", "settle") or',
        "unit/store/redis/test_steps.py::test_what_could_later_admit_too_much_waits[settle]",
    ),
    Mutant(
        "two subjects have one log",
        "store/redis/scripting/keys.py",
        '.replace(b"%", b"%25").replace(b"}", b"%7D")',
        '.replace(b"}", b"%7D")',
        "property/store/redis/test_keys.py::test_subjects_with_poison_in_them_are_subjects",
    ),
    Mutant(
        "a verb hangs as long as its server does",
        "store/redis/io/sync.py",
        "disable_decoding=True, timeout=seconds, disconnect_on_error=False",
        "disable_decoding=True, timeout=60, disconnect_on_error=False",
        "unit/store/redis/test_transport.py::test_a_read_ends_by_the_deadline_of_its_verb[sync]",
    ),
    Mutant(
        "a joint attempt counts what has ended",
        "store/redis/scripting/lua/joint.lua",
        "  part.record = take_record(part.logs, now, part.keys[1], field)\n",
        "  if part.logs[#part.logs].storage < -1 then part.logs[#part.logs] = nil end\n",
        ON_SERVERS + "test_a_batch_and_a_joint_attempt_see_what_ended_of_each_subject",
    ),
    Mutant(
        "what ended comes back in the channels whose logs were not read when it did",
        "store/redis/scripting/lua/reservation.lua",
        "entry.clean = id and read[struct.unpack('>I4', id)]",
        "entry.clean = true",
        ON_SERVERS + "test_a_reservation_is_the_channel_s_too",
    ),
    # Segments: what was verified, leases, widths.
    Mutant(
        "a manifest that was changed after it was verified is believed",
        "segment/snapshot/verified.py",
        "if (stamp.manifest_sha256, stamp.layout, stamp.files) != (_digest(data), _layout(manifest), there):",
        "if (stamp.layout, stamp.files) != (_layout(manifest), there):",
        "unit/segment/test_stamp.py::test_a_manifest_that_was_changed_after_it_was_stamped_is_not_believed",
    ),
    Mutant(
        "a file that was written to after it was verified is believed",
        "segment/snapshot/verified.py",
        "status.st_size, status.st_mtime_ns)",
        "status.st_size, 0)",
        "unit/segment/test_stamp.py::test_changed_files_are_verified_again",
    ),
    Mutant(
        "with 255 segments ids are told to be in another one",
        "segment/sets/codes.py",
        "dtype if len(sets) < np.iinfo(dtype).max else np.uint16",
        "dtype",
        "unit/segment/test_snapshot.py::TestAnswers::test_codes_of_many_segments_are_wide_enough",
    ),
    Mutant(
        "with a dictionary of more than 65,536 names ids get into wrong segments",
        "segment/build/build.py",
        "batch.codes.astype(np.uint16) if short else batch.codes",
        "batch.codes.astype(np.uint16)",
        "unit/segment/test_source.py::test_a_parquet_dictionary_of_more_names_than_16_bits_number",
    ),
    Mutant(
        "a - b is b - a",
        "segment/sets/expression.py",
        "            right, left = stack.pop(), stack.pop()",
        "            left, right = stack.pop(), stack.pop()",
        "unit/segment/test_expression.py::test_what_it_means",
    ),
    Mutant(
        "after a slow listing objects are deleted without a lease, while somebody publishes what needs them",
        "segment/publish/collect.py",
        "_delete(versions, clock, tuple(doomed), name, began)",
        "_delete(versions, clock, tuple(doomed), name, time.monotonic())",
        "distributed/test_segment_publish.py::TestCollecting::test_a_listing_that_takes_long_uses_up_the_lease",
    ),
    Mutant(
        "after Ctrl-C the answer to one call is read as that to the next",
        "segment/objects/fork_proxy.py",
        "            except BaseException as error:",
        "            except Exception as error:",
        "distributed/test_segment_places.py::TestForkProxy::test_an_interrupted_call_leaves_its_answer_to_nobody",
    ),
    Mutant(
        "an endless first line fills the memory",
        "tables/csv_file.py",
        "            if len(rest) > LONGEST_LINE_BYTES:",
        "            if len(rest) < 0:",
        "unit/segment/test_table.py::test_a_header_without_an_end_is_refused",
    ),
    # What callers make of an answer.
    Mutant(
        "one answer of a provider holds all hosts back for years",
        "model/retry_after.py",
        "return min(max(seconds, 0.0), LONGEST_SECONDS)",
        "return max(seconds, 0.0)",
        "unit/model/test_retry_after.py::test_seconds_and_dates",
    ),
    Mutant(
        "a far side that asks for it holds a campaign up for as long as it likes",
        "campaign/deliver.py",
        "min(asked_s, retry.longest_s))",
        "asked_s)",
        "unit/campaign/test_run.py::test_waits_grow_up_to_the_longest_with_jitter",
    ),
    Mutant(
        "a spreadsheet runs a formula out of somebody's data",
        "campaign/csv_cells.py",
        "\\s*[=+",
        "[=+",
        "unit/campaign/test_csv_cells.py::test_a_formula_gets_an_apostrophe",
    ),
    Mutant(
        "a batch that workers gave back in good order is set aside as one that they die of",
        "campaign/store/lua/release.lua",
        "':claims', -1)",
        "':claims', 0)",
        "conformance/test_campaign_stores.py::test_a_batch_that_is_given_back_goes_to_the_next_at_once_and_is_not_counted",
    ),
    Mutant(
        "a cost of 2x ends in a traceback",
        "cli/input/target.py",
        "not _COST.fullmatch(cost)",
        "not _COST.match(cost)",
        "unit/cli/test_subjects.py::test_what_is_none_is_one_line_that_says_how_to_write_it",
    ),
    Mutant(
        "erase leaves what a channel holds that the policy has no more",
        "limiter/policies/rules.py",
        "set(self._past_channels.get(log, ()))",
        "set[str]()",
        "unit/limiter/test_rules.py::test_a_channel_that_the_policy_has_no_more_is_known[all]",
    ),
    # What is answered to those who ask from outside, and configuration.
    Mutant(
        "a request of several units that is given back leaves all but one used up",
        "web/gate.py",
        "attempt.policy, attempt.subject, hit, attempt.cost, limits=attempt.limits",
        "attempt.policy, attempt.subject, hit, limits=attempt.limits",
        "unit/web/test_gate.py::test_all_units_of_a_request_are_given_back",
    ),
    Mutant(
        "what a request consumed of limits that it brought along is never given back",
        "web/gate.py",
        "attempt.policy, attempt.subject, hit, attempt.cost, limits=attempt.limits",
        "attempt.policy, attempt.subject, hit, attempt.cost",
        "unit/web/test_limits.py::test_what_is_given_back_is_of_the_same_limits",
    ),
    Mutant(
        "a client writes any address into X-Forwarded-For, and is never limited",
        "web/key.py",
        'forwarded.rsplit(",", trusted)[-trusted:]',
        'forwarded.split(",")[:trusted]',
        "unit/web/test_key.py::test_the_address_is_counted_from_the_right",
    ),
    Mutant(
        "an answer has the length of a body that is not sent, and the connection hangs",
        "web/answer.py",
        'if not name.lower().startswith("content-")',
        'if not name.startswith("content-")',
        "unit/web/test_asgi.py::test_an_exception_of_http_is_answered_and_any_other_raised",
    ),
    Mutant(
        "once somebody has shown the right secret, any secret with that name is taken",
        "service/access/guard.py",
        'hashlib.blake2b(f"{name}:{chosen}".encode(), key=self._key)',
        "hashlib.blake2b(name.encode(), key=self._key)",
        "unit/service/test_tokens.py::test_a_chosen_secret_is_sent_with_its_name",
    ),
    Mutant(
        "a token that may only decide brings old policies back",
        "service/verbs/configuration.py",
        '@post("/v1/policies/{name}/rollback", RollbackForm, Changed, roles=ADMIN)',
        '@post("/v1/policies/{name}/rollback", RollbackForm, Changed)',
        "unit/service/test_tokens.py::test_only_an_admin_rolls_back",
    ),
    Mutant(
        "a change is recorded under the name of somebody else",
        "service/verbs/configuration.py",
        "who=request.who or form.who",
        "who=form.who",
        "unit/service/test_tokens.py::test_a_change_is_its_tokens_whoever_it_names",
    ),
    Mutant(
        "a client names another subject in a header, and is never limited",
        "service/gateways/check.py",
        'named = _headers(request, None if "subject" in asked else asked.get("subject_header")) | asked',
        'named = asked | _headers(request, None if "subject" in asked else asked.get("subject_header"))',
        "unit/service/test_check.py::test_headers_say_it_and_a_parameter_wins_over_its_header",
    ),
    Mutant(
        "a client that sends a byte now and then holds a request for ever",
        "service/http/body.py",
        'async with asyncio.timeout(within_s):\n            return b""',
        'async with asyncio.timeout(None):\n            return b""',
        "unit/service/test_bad_requests.py::test_a_body_that_comes_by_drops_has_no_longer",
    ),
    Mutant(
        "a call of several units that is given back leaves all but one used up",
        "service/verbs/attempts.py",
        "self._limiter.refund(body.policy, body.subject, body.hit, body.cost)",
        "self._limiter.refund(body.policy, body.subject, body.hit)",
        "unit/service/test_api.py::test_a_hit_of_several_units_is_given_back_whole",
    ),
    Mutant(
        "a token that fills the store uses up the bound of all others",
        "service/access/new_subjects.py",
        "who or _NOBODY, min(count, quota)",
        "_NOBODY, min(count, quota)",
        "unit/service/test_bounds.py::test_each_token_has_a_bound_of_its_own",
    ),
    Mutant(
        "metrics and probes are open to the network without a token",
        "service/run/file.py",
        '(("http", settings.http), ("admin", settings.admin))',
        '(("http", settings.http),)',
        "unit/service/test_settings.py::test_a_fault_is_named_with_its_line",
    ),
    Mutant(
        "a certificate that is replaced while it is read ends the service",
        "service/settings/tls.py",
        "    except OSError as error:  # SSLError is one\n",
        "    except ssl.SSLError as error:\n",
        "unit/service/test_tls.py::test_a_file_that_breaks_while_it_is_checked",
    ),
    Mutant(
        "with client_ca a client that shows no certificate is let in",
        "service/settings/tls.py",
        "context.verify_mode = ssl.CERT_REQUIRED",
        "context.verify_mode = ssl.CERT_OPTIONAL",
        "unit/service/test_tls.py::test_with_a_client_ca_a_client_has_to_show_a_certificate",
    ),
    Mutant(
        "two overrides of the same limits have the granularity of the one that was read first",
        "config/view.py",
        "key = (granularity, *texts)",
        "key = (None, *texts)",
        "unit/config/test_backends.py::TestMemory::test_an_override_may_have_a_granularity_of_its_own",
    ),
    Mutant(
        "a subject whose override is damaged has the limits of everybody",
        "config/view.py",
        "        except StoreDamagedError:\n            raise  # not an outage: nothing may be decided on it\n",
        "",
        "unit/config/test_view.py::test_a_damaged_row_is_said_and_allows_nothing",
    ),
    Mutant(
        "damage in a configuration store is no error of capline, and ends the thread that follows it",
        "config/records.py",
        "type=form)\n    except (msgspec.DecodeError, UnicodeDecodeError):",
        "type=form)\n    except UnicodeDecodeError:",
        "unit/config/test_view.py::test_damaged_totals_are_said",
    ),
    Mutant(
        "an export of many overrides lacks one in a thousand",
        "config/local.py",
        "                    return found, key\n",
        '                    return found, key + b"\\0"\n',
        "unit/config/test_backends.py::TestLmdb::test_many_overrides_are_many_commits",
    ),
    Mutant(
        "of two who write at once one is told that the change is made, and it is lost",
        "config/local.py",
        "return made is not None and read_commit(made).token == token",
        "return made is not None",
        "unit/config/test_backends.py::TestMemory::test_a_commit_that_is_sent_twice_is_one",
    ),
    Mutant(
        "the memory of a server grows with every change for ever",
        "config/lua/commit.lua",
        "redis.call('LTRIM', KEYS[2], -tonumber(ARGV[5]), -1)\n",
        "",
        "unit/config/test_backends.py::TestServer::test_the_feed_is_bounded_in_the_store[redis]",
    ),
    Mutant(
        "past its bound the receiver counts every message that comes again",
        "up/receiver.py",
        "del self._keys[next(iter(self._keys))]",
        "del self._keys[next(reversed(self._keys))]",
        "unit/up/test_receiver.py::test_past_the_bound_the_oldest_message_is_forgotten",
    ),
    Mutant(
        "everybody on the host reads who was reached and when",
        "support/private.py",
        "PRIVATE_FILE = 0o600",
        "PRIVATE_FILE = 0o644",
        "unit/support/test_private.py::test_an_embedded_store_and_the_directories_made_for_it",
    ),
    Mutant(
        "an override that a program changes every minute grows for ever",
        "config/changes.py",
        "kept = [*read_past(pasts[name]), old][-MOST_PAST[table] :]",
        "kept = [*read_past(pasts[name]), old]",
        "unit/config/test_view.py::test_versions_past_the_last_are_kept_no_longer",
    ),
)
