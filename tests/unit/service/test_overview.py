"""What the console's pages say of servers and shares: nothing twice, and no part as nothing or as all."""

import pytest
from markupsafe import Markup

from capline.service.console.overview import servers_once
from capline.service.console.render import labelled, percent


def test_a_server_of_logs_and_configuration_is_listed_once_with_all_its_faults() -> None:
    config = [{"server": server, "clients": 1, "faults": {"breaker": "open"}} for server in ("a:1", "b:1")]
    main = [{"server": "a:1", "clients": 9, "faults": {"unsaved_s": "failed"}}]
    assert servers_once({"config": config, "main": main}) == [
        {"store": "main", "server": "a:1", "clients": 9, "faults": {"breaker": "open", "unsaved_s": "failed"}},
        {"store": "config", **config[1]},
    ]


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        *((0, 0, "0 %"), (0, 9, "0 %"), (1, 9, "11 %"), (9, 9, "100 %")),
        *((6, 3_319, "<1 %"), (3_313, 3_319, ">99 %"), (1, 100, "1 %"), (99, 100, "99 %")),
    ],
)
def test_a_share_is_neither_nothing_nor_all_unless_it_is(part: int, whole: int, text: str) -> None:
    assert percent(part, whole) == text


def test_each_cell_of_a_row_has_its_head() -> None:
    rows = Markup('<tr><td>a</td><td class="text">&lt;td</td></tr><tr><td>b</td><td></td></tr>')
    assert labelled(rows, [".Name", 'What "is"']) == (
        '<tr><td data-head="Name">a</td><td data-head="What &#34;is&#34;" class="text">&lt;td</td></tr>'
        '<tr><td data-head="Name">b</td><td data-head="What &#34;is&#34;"></td></tr>'
    )
