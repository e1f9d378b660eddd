"""What a problem document calls its status: the words of RFC 9110, which Python's own are from 3.13 on only."""

from __future__ import annotations

from http import HTTPStatus

__all__ = ["status_title"]

_RENAMED = {
    413: "Content Too Large",
    414: "URI Too Long",
    416: "Range Not Satisfiable",
    422: "Unprocessable Content",
}


def status_title(status: int) -> str:
    """The title of a status from 100 to 599; one that nobody knows is that of its class, as 499 of 400."""
    if status in _RENAMED:
        return _RENAMED[status]
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return HTTPStatus(status // 100 * 100).phrase
