"""What came back, measured: by campaign, by segment, by the k-th message in the window; and who took whose place.

rate        of those sent to, how many messages have an event of the kind
against     those that a campaign held out, and those it would have sent to, whatever became of the message: how
            many of each an event followed. Chance alone parts the two, so their difference is the effect of sending
k-th        a message is the k-th where its recipient was sent k - 1 in the window before it; of the held out, the
            one that they did not get
regret      for each refusal the messages that took up the window of the limit that refused, by their campaign
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from capline.campaign.response.intervals import LEAST, METHOD, Difference, Share, difference_of, share_of
from capline.campaign.response.messages import HELD_OUT, NOT_KNOWN, REFUSED, SENT, TRIED, Timeline
from capline.model.errors import CaplineError
from capline.model.limit import Limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from capline.campaign.response.messages import Messages
    from capline.campaign.response.replies import Kind, Replies

MOST_NUMBERS = 10
"""Later messages of a window are counted with the tenth."""
CANNOT_TELL = (
    "Who gets a 4th message is not who gets a 1st, so rates by number, or of two campaigns, do not say what one "
    "message more would bring or cost; only the difference to a holdout does."
)


class Against(NamedTuple):
    """Those who would have been sent to beside those held out."""

    sent_to: Share
    held_out: Share
    difference: Difference


class Group(NamedTuple):
    """Some messages and one kind of event. None stands for all; an empty segment for no segment."""

    kind: str
    campaign: str | None
    segment: str | None
    number: int | None
    sent: Share
    against: Against | None


class Regret(NamedTuple):
    """What the refused messages of a campaign lost their places to."""

    campaign: str
    refused: int
    taken_by: dict[str, int]
    """Messages in the windows of the limits that refused, by their campaign."""
    refused_by: dict[str, int]
    """Refusals for which a campaign had a message in the window."""
    unexplained: int
    """Refusals with none of the named campaigns in their windows."""


class Response(NamedTuple):
    """All of it."""

    groups: list[Group]
    regret: list[Regret]
    events: int
    never_sent: int
    outside: int

    @property
    def compared(self) -> list[Difference]:
        """The differences that have an interval."""
        return [
            group.against.difference
            for group in self.groups
            if group.against and group.against.difference.low is not None
        ]


def measure(messages: Messages, replies: Replies, window_us: int) -> Response:
    """Measure what has been read; the k-th message is counted in windows of this length."""
    numbers = _numbers(messages, window_us)
    slices: list[tuple[str | None, str | None, int | None, NDArray[np.bool_]]] = []
    for code, campaign in enumerate(messages.campaign_names):
        rows = messages.campaigns == code
        slices.append((campaign, None, None, rows))
        there = np.unique(messages.segments[rows]).tolist()
        if len(there) > 1:
            slices += [
                (campaign, messages.segment_names[each], None, rows & (messages.segments == each)) for each in there
            ]
    slices += [(None, None, number, numbers == number) for number in range(1, int(numbers.max(initial=0)) + 1)]
    groups = [
        group
        for name, kind in replies.kinds.items()
        for followed in [kind.followed(replies.line)]
        for campaign, segment, number, rows in slices
        if (group := _group(messages, name, kind, followed, campaign, segment, number, rows))
    ]
    return Response(groups, list(_regret(messages)), replies.events, replies.never_sent, replies.outside)


def _group(
    messages: Messages,
    name: str,
    kind: Kind,
    followed: NDArray[np.bool_],
    campaign: str | None,
    segment: str | None,
    number: int | None,
    rows: NDArray[np.bool_],
) -> Group | None:
    people, state = messages.people, messages.state
    sent, held = np.flatnonzero(rows & (state == SENT)), np.flatnonzero(rows & (state == HELD_OUT))
    if not sent.size and not held.size:
        return None
    against = None
    meant = np.flatnonzero(rows & np.isin(state, (SENT, NOT_KNOWN, TRIED)))
    if held.size and meant.size and not kind.by_key:
        sent_to, held_out = (share_of(people[some], followed[some], LEAST) for some in (meant, held))
        against = Against(sent_to, held_out, difference_of(sent_to, held_out))
    return Group(name, campaign, segment, number, share_of(people[sent], kind.direct[sent]), against)


def _numbers(messages: Messages, window_us: int) -> NDArray[np.int64]:
    """Which message of its recipient's window each is or would have been, at most `MOST_NUMBERS`."""
    people, at_us = messages.people, messages.at_us
    line = Timeline(people, at_us, np.flatnonzero(messages.state == SENT))
    numbers = line.upto(people, at_us) + 1
    numbers[line.rows] = np.arange(len(line.rows)) + 1  # of several in one instant each has its own
    return np.clip(numbers - line.upto(people, at_us - window_us), 1, MOST_NUMBERS)


def _regret(messages: Messages) -> Iterator[Regret]:
    line = Timeline(messages.people, messages.hit_us, np.flatnonzero(messages.hit_us >= 0))
    limits = [_limit(name) for name in messages.limit_names]
    windows = np.array([limit.window_us if limit else 0 for limit in limits], np.int64)
    calendars = np.array([bool(limit and limit.needs_zone) for limit in limits])
    refused = np.flatnonzero((messages.state == REFUSED) & (windows[messages.limits] > 0))
    people, at_us, which_limit = messages.people[refused], messages.at_us[refused], messages.limits[refused]
    # A calendar's day ends when it fits, and has its midnight in it.
    ends = np.where(calendars[which_limit], messages.until_us[refused] - 1, at_us)
    low = line.upto(people, np.minimum(at_us, ends - windows[which_limit]))
    counts = line.upto(people, at_us) - low
    which = np.repeat(np.arange(len(refused)), counts)
    place = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    takers = messages.campaigns[line.rows[low[which] + place]]
    losers = messages.campaigns[refused]
    for code, name in enumerate(messages.campaign_names):
        lost = losers == code
        if not lost.any():
            continue
        mine = losers[which] == code
        taken = [(other, which[mine & (takers == taker)]) for taker, other in enumerate(messages.campaign_names)]
        taken = sorted((each for each in taken if each[1].size), key=lambda each: -each[1].size)
        units = {other: len(refusals) for other, refusals in taken}
        refusals = {other: len(np.unique(refusals)) for other, refusals in taken}
        yield Regret(name, int(lost.sum()), units, refusals, int(np.count_nonzero(counts[lost] == 0)))


def _limit(text: str) -> Limit | None:
    """The limit of this name; None for one that no messages fill, like quiet hours."""
    try:
        limit = Limit.parse(text)
    except CaplineError:
        return None
    return limit if limit.quota else None


def facts(found: Response, told: list[str]) -> dict[str, object]:
    """All of it in JSON."""
    compared = found.compared
    return {
        "events": found.events,
        "never_sent": found.never_sent,
        "outside_window": found.outside,
        "campaigns": [_facts(group) for group in found.groups if group.number is None],
        "by_number": [_facts(group) for group in found.groups if group.number is not None],
        "regret": [each._asdict() for each in found.regret],
        "intervals": METHOD,
        "compared": len(compared),
        "apart": sum(each.is_apart for each in compared),
        "apart_by_chance": len(compared) / 20,
        "cannot_tell": CANNOT_TELL,
        "told": told,
    }


def _facts(group: Group) -> dict[str, object]:
    names = {"event": group.kind, "campaign": group.campaign, "segment": group.segment, "number": group.number}
    shown: dict[str, object] = {key: value for key, value in names.items() if value is not None}
    shown |= _share(group.sent)
    if group.against is not None:
        sent_to, held_out, difference = group.against
        shares = {"sent_to": _share(sent_to), "held_out": _share(held_out)}
        shown["against_holdout"] = shares | difference._asdict()
    return shown


def _share(share: Share) -> dict[str, object]:
    return {"of": share.of, "responded": share.responded, "rate": share.rate, "low": share.low, "high": share.high}
