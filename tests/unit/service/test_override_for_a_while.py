import asyncio
from typing import Any, cast

import pytest

from capline.model.errors import StoreUnavailableError
from capline.service.access.tokens import Token
from capline.service.console.subject import SubjectPage
from capline.service.console.verbs import Verbs


@pytest.mark.parametrize("fault", [StoreUnavailableError("gone"), asyncio.CancelledError()])
def test_limits_whose_end_cannot_be_set_are_taken_away_again(fault: BaseException) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    async def verbs(_token: Token, method: str, _path: str, *_names: str, form: object = None, **query: Any) -> Any:
        asked.append((method, query))
        if method == "PATCH":
            raise fault
        return {"version": 7}

    page = SubjectPage(cast("Verbs", verbs))
    with pytest.raises(type(fault)):
        asyncio.run(page.override(cast("Token", None), "42", "promo", "2/day", "1"))
    assert asked == [("PUT", {}), ("PATCH", {}), ("DELETE", {"if_version": 7})]
