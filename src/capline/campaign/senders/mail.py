"""A mail's bytes: templates filled and escaped by the field that they stand in, what is the same in all written once.

    From, To, Reply-To     addresses: `address` checks them, a name is quoted or encoded
    any other header       a line; what is not plain ASCII, or is long, is encoded (RFC 2047)
    List-Unsubscribe       an https address in which each value is percent-encoded; one click is enough (RFC 8058)
    text, html             quoted-printable; in html each value is escaped

The rule: no value of a recipient ends a header, or is more than text in it: a mail whose header would have a line break
or another control character is not sent. Signing (DKIM) is the relay's part.

Cost: 50 us a mail; the standard library's `EmailMessage` takes 20 times that.
"""

import re
from binascii import b2a_qp
from collections.abc import Sequence
from email.header import Header
from email.headerregistry import Address
from email.utils import formatdate
from email.utils import quote as quoted
from functools import lru_cache
from html import escape
from time import time
from urllib.parse import quote

from capline.campaign.senders.address import parse_address
from capline.campaign.senders.protocol import Message, RunInfo
from capline.campaign.senders.template import Template, read_template
from capline.forms.fields import Fields
from capline.model.errors import CampaignError

_BREAKS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,59}", re.ASCII)
_OURS = re.compile(
    r"(from|to|cc|bcc|subject|date|message-id|mime-version|content-.*|x-capline-key|list-unsubscribe(-post)?)",
    re.IGNORECASE,
)
_HTTPS = re.compile(r"https://[A-Za-z0-9.:-]+(/[!-~]*)?", re.ASCII)
_ADDRESSES = ("reply-to", "sender")
_LONGEST_PLAIN = 70
_LONGEST_LINE_BYTES = 998


class MailForm:
    """The mails of a campaign, from a sender's options; what is wrong in them is noted as faults."""

    def __init__(self, options: Fields) -> None:
        self._from = _sender(options)
        self.sender = self._from.addr_spec
        self._to = read_template(options, "to", "'{email}'")
        self._lines = {"Subject": read_template(options, "subject", "Summer sale"), **_headers(options)}
        self._text = read_template(options, "text", "Hello!")
        self._html = _optional(options, "html")
        self._unsubscribe = _optional(options, "unsubscribe")
        if self._unsubscribe is not None and not _HTTPS.fullmatch(self._unsubscribe.text):
            options.fault("unsubscribe", "it is not like 'https://shop.example/unsubscribe/{key}'")

    def check(self, columns: Sequence[str]) -> None:
        """`CampaignError` for a placeholder that nothing fills."""
        for template in (self._to, *self._lines.values(), self._text, self._html, self._unsubscribe):
            if template is not None:
                template.check(columns)

    def fill(self, message: Message, run: RunInfo) -> tuple[str, bytes]:
        """The address that a message's mail goes to, and its bytes; `ValueError` where no such mail can be sent."""
        texts = message.texts
        to = parse_address(self._to.fill(texts))
        message_id = f"<{run.run_id}.{quote(str(message.id), '')}@{self._from.domain}>"
        head = [
            f"From: {_mailbox('From', self._from)}",
            f"To: {_mailbox('To', to)}",
            *(_line(name, template.fill(texts)) for name, template in self._lines.items()),
            f"Date: {_date(int(time()))}",
            f"Message-ID: {message_id}",
            f"X-Capline-Key: {message.key}",
            "MIME-Version: 1.0",
        ]
        if self._unsubscribe is not None:
            address = self._unsubscribe.fill(texts, lambda value: quote(value, ""))
            head += [f"List-Unsubscribe: <{address}>", "List-Unsubscribe-Post: List-Unsubscribe=One-Click"]
        text = _part("plain", self._text.fill(texts))
        if self._html is None:
            body = text
        else:
            boundary = f"=_{run.run_id}"
            html = _part("html", self._html.fill(texts, escape))
            head.append(f'Content-Type: multipart/alternative; boundary="{boundary}"')
            body = f"\n--{boundary}\n{text}\n--{boundary}\n{html}\n--{boundary}--\n"
        lines = "\n".join(head).encode()
        if max(map(len, lines.split(b"\n"))) > _LONGEST_LINE_BYTES:
            raise ValueError("a header is too long")
        return to.addr_spec, (lines + b"\n" + body.encode()).replace(b"\n", b"\r\n")


@lru_cache(1)
def _date(second: int) -> str:
    return formatdate(second)


def _part(kind: str, text: str) -> str:
    if "\0" in text:
        raise ValueError("the text has a control character")
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    head = f"Content-Type: text/{kind}; charset=utf-8\nContent-Transfer-Encoding: quoted-printable\n\n"
    return f"{head}{b2a_qp(lines.encode()).decode('ascii')}"


def _line(name: str, text: str) -> str:
    if name.lower() in _ADDRESSES:
        return f"{name}: {_mailbox(name, parse_address(text))}"
    if _BREAKS.search(text):
        raise ValueError(f"{name} has a control character")
    return f"{name}: {text if _is_plain(text) else Header(text, 'utf-8', header_name=name).encode()}"


def _mailbox(name: str, address: Address) -> str:
    """An address as a header has it; its name was checked to be printable."""
    plain, shown = f"{address.username}@{address.domain}", address.display_name
    if not shown:
        return plain
    encoded = f'"{quoted(shown)}"' if _is_plain(shown) else f"{Header(shown, 'utf-8', header_name=name).encode()}\n"
    return f"{encoded} <{plain}>"


def _is_plain(text: str) -> bool:
    """Whether a text needs no encoding; one that looks like an encoded word does."""
    return text.isascii() and len(text) <= _LONGEST_PLAIN and "=?" not in text


def _sender(options: Fields) -> Address:
    text = options.text("from", like="Shop <news@example.org>")
    try:
        address = parse_address(text)
        address.addr_spec.encode("ascii")
    except ValueError:
        if text:
            options.fault("from", f"{text!r} is not an address like news@example.org")
        return Address("", "nobody", "example.org")
    return address


def _optional(options: Fields, key: str) -> Template | None:
    if options.has(key):
        return read_template(options, key)
    options.node(key)  # a known key, left out
    return None


def _headers(options: Fields) -> dict[str, Template]:
    headers: dict[str, Template] = {}
    for name, text in options.mapping("headers").items():
        try:
            headers[name] = Template(text)
        except CampaignError as error:
            options.fault("headers", f"{name}: {error}")
        if not _NAME.fullmatch(name):
            options.fault("headers", f"{name!r} is not a header's name")
        elif _OURS.fullmatch(name):
            options.fault("headers", f"{name} is set for each mail; leave it out")
    return headers
