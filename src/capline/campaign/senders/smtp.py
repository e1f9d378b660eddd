"""The `smtp` sender: one mail for each message, over one connection, by the standard library.

    To          the template `to`: `{email}` from an audience column, or `user-{id}@example.org`
    Message-ID  <run id.subject id@domain of `from`>: the same each time a message is sent
    X-Capline-Key  the message's key

    250                                         delivered: the server has accepted it
    4xx, no connection, lost before last line   transient: the server cannot have the whole mail
    5xx, an invalid address                     permanent
    no answer to the last line, or half of one  not known: the server may have accepted it

The rule: SMTP has no idempotency, so a mail whose outcome is not known is sent again only with `again: true`, with the
same Message-ID, by which some mailboxes drop duplicates. At most `most` mails are sent between two entries in the
ledger: after a kill, so many may be not known.
"""

from __future__ import annotations

import contextlib
import re
import smtplib  # its exceptions are all OSErrors
import ssl
from email.errors import MessageError
from email.message import EmailMessage
from email.utils import formatdate, parseaddr
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from capline.campaign.senders.address import parse_address
from capline.campaign.senders.protocol import (
    DELIVERED,
    PERMANENT,
    TRANSIENT,
    UNKNOWN,
    Message,
    Messages,
    Outcomes,
    RunInfo,
)
from capline.campaign.senders.template import Template, from_environment
from capline.model.errors import CampaignError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capline.forms.fields import Fields

_TLS_PORTS = {"none": 25, "starttls": 587, "tls": 465}
_LAST_LINE = b"\r\n.\r\n"
_TAKEN, _TRANSIENT_FROM, _PERMANENT_FROM, _BEYOND = range(200, 300), 400, 500, 600
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_LARGEST_PORT = 65535


class _Smtp(smtplib.SMTP):
    """A connection that notes when the last line of a mail was sent: from then on the server may have accepted it."""

    mail_is_out = False

    def send(self, s: Any) -> None:
        """Send bytes or a text, as `smtplib` does for each line and for the mail itself."""
        if s[-5:] in (_LAST_LINE, _LAST_LINE.decode()):
            self.mail_is_out = True
        super().send(s)


class _SmtpOverTls(_Smtp, smtplib.SMTP_SSL):
    pass


class SmtpSender:
    """See the module's text.

    Options: `server` (host, or host:port); `from`; `to`, `subject` and `text`, templates; `tls`: starttls (default),
    tls or none; `username` and `password`, in which `${NAME}` stands for an environment variable; `timeout` (10), in
    seconds; `again` (false), whether a mail that may have been taken is sent again.
    """

    main: ClassVar[str] = "server"
    tuning: ClassVar[frozenset[str]] = frozenset({"timeout", "again"})
    most: int | None = 50

    def __init__(self, options: Fields) -> None:
        self._tls = options.one_of("tls", tuple(_TLS_PORTS), "starttls")
        self._host, self._port = _server(options, _TLS_PORTS.get(self._tls, 25))
        self._timeout_s = options.seconds("timeout", 10.0, 600)
        self.asks_again = options.flag("again", default=False)
        self._from = options.text("from", like="Shop <news@example.org>")
        self._to = _template(options, "to", "'{email}'")
        self._subject = _template(options, "subject", "Summer sale")
        self._text = _template(options, "text", "Hello!")
        self._user = _secret(options, "username")
        self._password = _secret(options, "password")
        self._run: RunInfo | None = None
        self._smtp: _Smtp | None = None
        address = parseaddr(self._from)[1]
        self._domain = address.rpartition("@")[2]
        if self._from and (address.count("@") != 1 or not self._domain or not address.isascii()):
            options.fault("from", f"{self._from!r} is not an address like news@example.org")
        if bool(self._user) != bool(self._password):
            options.fault(None, "give username and password both, or none of them")

    def check(self, columns: Sequence[str]) -> None:
        """See `BuiltSender`."""
        for template in (self._to, self._subject, self._text):
            template.check(columns)

    def open(self, run: RunInfo) -> None:
        """Connect; `CampaignError` if the server refuses the connection or the login."""
        self._run = run
        try:
            self._smtp = self._connect()
        except OSError as error:
            raise CampaignError(f"sender smtp: {self._host}:{self._port}: {_reason(error)}; nothing was sent") from None

    def send(self, messages: Messages) -> Outcomes:
        """Send one after the other; if the server is lost and cannot be reached again, the rest is transient."""
        outcomes = Outcomes.delivered(len(messages))
        for row in range(len(messages)):
            try:
                mail, address = self._mail(messages[row])
            except (ValueError, MessageError) as error:
                outcomes.fail(row, PERMANENT, f"no such mail: {str(error).splitlines()[0][:80]}")
                continue
            try:
                if self._smtp is None:
                    self._smtp = self._connect()
            except OSError as error:
                for left in range(row, len(messages)):
                    outcomes.fail(left, TRANSIENT, _reason(error))
                break
            try:
                self._smtp.mail_is_out = False
                self._smtp.send_message(mail, to_addrs=[address])
            except OSError as error:
                code = _code(error, mail_is_out=self._smtp.mail_is_out)
                if code != DELIVERED:
                    outcomes.fail(row, code, _reason(error))
                if not _answered(error) or code == UNKNOWN:
                    self._drop()
        return outcomes

    def close(self) -> None:
        """Send QUIT and close the connection."""
        if self._smtp is not None:
            with contextlib.suppress(OSError):
                self._smtp.quit()
            self._drop()

    def _mail(self, message: Message) -> tuple[EmailMessage, str]:
        run_id = "" if self._run is None else self._run.run_id
        address = parse_address(self._to.fill(message))
        subject, text = self._subject.fill(message), self._text.fill(message)
        if _CONTROL.search(subject) or "\0" in text:
            raise ValueError("the subject or text has a control character")
        mail = EmailMessage()
        mail["From"] = self._from
        mail["To"] = address
        mail["Subject"] = subject
        mail["Date"] = formatdate()
        mail["Message-ID"] = f"<{run_id}.{quote(str(message.id), '')}@{self._domain}>"
        mail["X-Capline-Key"] = message.key
        mail.set_content(text)
        return mail, f"{address.username}@{address.domain}"

    def _connect(self) -> _Smtp:
        context = ssl.create_default_context()
        if self._tls == "tls":
            smtp: _Smtp = _SmtpOverTls(self._host, self._port, timeout=self._timeout_s, context=context)
        else:
            smtp = _Smtp(self._host, self._port, timeout=self._timeout_s)
        try:
            if self._tls == "starttls":
                smtp.starttls(context=context)
            if self._user:
                smtp.login(self._user, self._password)
        except BaseException:
            smtp.close()
            raise
        return smtp

    def _drop(self) -> None:
        if self._smtp is not None:
            self._smtp.close()
            self._smtp = None


def _answered(error: Exception) -> bool:
    """Whether the server itself refused, or was not asked: the connection is then still good."""
    good = smtplib.SMTPResponseException, smtplib.SMTPRecipientsRefused, smtplib.SMTPNotSupportedError
    return isinstance(error, good)


def _status(error: Exception) -> int | None:
    match error:
        case smtplib.SMTPResponseException():
            return error.smtp_code
        case smtplib.SMTPRecipientsRefused():
            return max((code for code, _ in error.recipients.values()), default=None)
        case _:
            return None


def _code(error: Exception, *, mail_is_out: bool) -> int:
    """A code of `protocol`. Once the mail is out, only a complete refusal shows that it was not accepted."""
    status = _status(error)
    if isinstance(error, smtplib.SMTPNotSupportedError):
        return PERMANENT
    if mail_is_out and (status is None or not _TRANSIENT_FROM <= status < _BEYOND):
        return DELIVERED if status in _TAKEN else UNKNOWN
    return PERMANENT if status is not None and status >= _PERMANENT_FROM else TRANSIENT


def _reason(error: Exception) -> str:
    status = _status(error)
    if isinstance(error, smtplib.SMTPNotSupportedError):
        return "the address needs SMTPUTF8, which the server does not have"
    if status is not None:
        return f"SMTP {status}"
    return f"no answer ({getattr(error, 'strerror', None) or type(error).__name__})"


def _server(options: Fields, port: int) -> tuple[str, int]:
    text = options.text("server", like="mail.example.org:587")
    host, colon, number = text.rpartition(":")
    if not colon:
        return text, port
    if not host or not (number.isascii() and number.isdecimal() and 0 < int(number) <= _LARGEST_PORT):
        options.fault("server", f"{text!r} is not host or host:port")
        return text, port
    return host.strip("[]"), int(number)


def _template(options: Fields, key: str, like: str) -> Template:
    text = options.text(key, like=like)
    try:
        return Template(text)
    except CampaignError as error:
        options.fault(key, str(error))
        return Template("")


def _secret(options: Fields, key: str) -> str:
    try:
        return from_environment(options.optional(key) or "")
    except CampaignError as error:
        options.fault(key, str(error))
        return ""
