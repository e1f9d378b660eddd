"""What was found: one line each, and where it is wrong what to do and the page that tells more."""

from collections.abc import Callable

import msgspec

from capline.model.errors import CaplineError


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """`said` also says what to do where something is wrong; then `page` describes it."""

    about: str
    said: str
    ok: bool
    page: str = ""


def wrong(about: str, said: str, page: str) -> Finding:
    """What somebody has to mend."""
    return Finding(about, said, ok=False, page=page)


def readable(about: str, read: Callable[[], str], page: str) -> Finding:
    """What `read` says; wrong where it raises."""
    try:
        return Finding(about, read(), ok=True)
    except CaplineError as error:
        return wrong(about, " ".join(str(error).split()), page)
