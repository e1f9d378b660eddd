"""The law, asked through a service: what HTTP has goes by HTTP, the rest straight to the service's own limiter."""

from typing import Any

import pytest
from tests.kit.over_http import AtService

from capline.testing.conformance import StoreConformance, url_of
from capline.testing.law.bulk.at_once import AtOnceLaw

NOT_BY_HTTP = {
    "the limits of a decision of a batch": ("test_each_item_of_a_batch_has_states",),
    "the ids of hits": (
        "test_an_id_is_known_however_many_refusals_were_counted",
        "test_explain_names_the_limit_that_binds_and_the_ids_that_it_is_given",
        "test_explain_tells_what_is_left_under_every_algorithm",
        "test_several_ids_are_known_and_the_rest_is_forgotten",
        "test_what_is_no_list_is_one_line_that_says_so",
    ),
    "limits that come with a call": (
        "test_a_slot_may_be_under_limits_that_come_with_it",
        "test_limits_may_come_with_an_attempt",
    ),
    "a store that processes share": ("test_four_processes_get_exactly_the_quota",),
    "zones by row": ("test_one_segment_and_one_zone_for_each_row", "test_rows_of_a_batch_have_zones"),
}
"""Checks that look at what HTTP does not have."""


class _OverHttp(StoreConformance):
    store_url = staticmethod(url_of("lmdb://{tmp}/store"))
    vars().update(dict.fromkeys(name for names in NOT_BY_HTTP.values() for name in names))

    def limiter(self, *policies: Any, clock: Any = None, namespace: str = "", **options: Any) -> Any:
        clock, namespace = clock or self.clock, namespace or self.namespace
        limiter = AtService(self.url, policies, self.asynchronous, clock=clock, namespace=namespace, **options)
        self._open.append(limiter)
        return limiter


class TestOverHttp(_OverHttp):
    pass


@pytest.mark.deep
class TestOverHttpAsync(_OverHttp):
    asynchronous = True
    vars().update(dict.fromkeys(name for name in vars(AtOnceLaw) if name.startswith("test_")))  # from threads
