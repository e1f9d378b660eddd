"""The title of a status in a problem document: RFC 9110's words, which Python itself has from 3.13 on."""

from http import HTTPStatus

_RENAMED = {413: "Content Too Large", 414: "URI Too Long", 416: "Range Not Satisfiable", 422: "Unprocessable Content"}


def status_title(status: int) -> str:
    """The title of a status from 100 to 599; an unknown one gets that of its class: 499 that of 400."""
    if status in _RENAMED:
        return _RENAMED[status]
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return HTTPStatus(status // 100 * 100).phrase
