"""What a worker refuses."""

from contextlib import closing

import pytest

from capline.campaign.queue.worker import Worker
from capline.campaign.stop import Stop
from capline.model.errors import CampaignError


@pytest.mark.parametrize("takeover_s", [0.9, -1, 86_401, float("inf"), float("nan")])
def test_a_takeover_time_that_cannot_be(takeover_s: float) -> None:
    with closing(Stop()) as stop, pytest.raises(CampaignError, match=r"taken over after 1 to 86400 s, not "):
        Worker("redis://127.0.0.1:1/0", stop, takeover_s=takeover_s)
