"""The `smtp` sender: one mail for each message, over `connections` connections at a time, by the standard library.

    mail           the bytes of a mail, from templates: `mail`
    smtp_session   one connection, pipelined

    Message-ID     <run id.subject id@domain of `from`>: the same each time a message is sent
    X-Capline-Key  the message's key

    250                                         delivered: the server has accepted it
    4xx, no connection, lost before last line   transient: the server cannot have the whole mail
    5xx, an invalid address                     permanent
    no answer to the last line, or half of one  not known: the server may have accepted it

The rule: SMTP has no idempotency, so what may have been accepted is sent again only with `again: true`, with the same
Message-ID, by which some mailboxes drop duplicates. That is one mail for each connection that is lost, and after a kill
what was handed over since the last entry in the ledger, at most 50 mails a connection.

A thread for each connection: it builds a mail while others wait for the server.
"""

from __future__ import annotations

import smtplib
import socket
import ssl
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from capline.campaign.senders.mail import MailForm
from capline.campaign.senders.protocol import PERMANENT, TRANSIENT, Messages, Outcomes, RunInfo
from capline.campaign.senders.smtp_session import Session, reason_of
from capline.campaign.senders.template import filled
from capline.forms.fields import Fields
from capline.model.errors import CampaignError
from capline.support.system import wait_in_kernel

_TLS_PORTS = {"none": 25, "starttls": 587, "tls": 465}
_LARGEST_PORT = 65535
_HAND_OVER = 50
"""Mails for each connection in one `send`: enough to keep all busy, few enough for what a kill leaves not known."""


class SmtpSender:
    """See the module's text.

    Options: `server` (host, or host:port); `from`; `to`, `subject`, `text`, `html`, `headers` and `unsubscribe`,
    templates; `connections` (4); `tls`: starttls (default), tls or none; `username` and `password`, in which `${NAME}`
    stands for an environment variable; `timeout` (10), in seconds; `again` (false), whether a mail that may have been
    taken is sent again.
    """

    main: ClassVar[str] = "server"
    tuning: ClassVar[frozenset[str]] = frozenset({"timeout", "again", "connections"})

    def __init__(self, options: Fields) -> None:
        self._tls = options.one_of("tls", tuple(_TLS_PORTS), "starttls")
        self._host, self._port = _server(options, _TLS_PORTS.get(self._tls, 25))
        self._timeout_s = options.seconds("timeout", 10.0, 600)
        self.asks_again = options.flag("again", default=False)
        self.at_once = options.whole("connections", 4, 1, 100)
        self.most: int | None = self.at_once * _HAND_OVER
        self._form = MailForm(options)
        self.check = self._form.check
        self._user, self._password = (
            filled(options, key, options.optional(key) or "") for key in ("username", "password")
        )
        self._run: RunInfo | None = None
        self._context: ssl.SSLContext | None = None
        self._threads = ThreadPoolExecutor(self.at_once, "smtp")
        self._sessions = [Session(self._connect, self._form.sender) for _ in range(self.at_once)]
        if bool(self._user) != bool(self._password):
            options.fault(None, "give username and password both, or none of them")

    def open(self, run: RunInfo) -> None:
        """Connect once; `CampaignError` if the server refuses the connection or the login."""
        self._run = run
        self._context = None if self._tls == "none" else ssl.create_default_context()
        try:
            self._sessions[0].open()
        except OSError as error:
            where = f"{self._host}:{self._port}"
            raise CampaignError(f"sender smtp: {where}: {reason_of(error)}; nothing was sent") from None

    def send(self, messages: Messages) -> Outcomes:
        """Send them all; what no connection could be made for is transient."""
        outcomes = Outcomes.delivered(len(messages))
        rows = iter(range(len(messages)))
        sessions = self._sessions[: len(messages)]
        left: list[int] = []

        def work(session: Session) -> str:
            return session.deliver(self._mails(messages, rows, outcomes), outcomes.fail)

        try:
            reasons = list(self._threads.map(work, sessions))
        finally:
            left += rows  # after an interrupt nothing more is begun
        for row in left:
            outcomes.fail(row, TRANSIENT, max(reasons))
        return outcomes

    def close(self) -> None:
        """Send QUIT and close the connections."""
        self._threads.shutdown()
        for session in self._sessions:
            session.close()

    def _mails(self, messages: Messages, rows: Iterator[int], outcomes: Outcomes) -> Generator[tuple[int, str, bytes]]:
        """Some of the mails, each a row, an address and its bytes; those that cannot be sent have failed."""
        if self._run is None:
            raise CampaignError("this sender is not open")
        for row in rows:
            try:
                yield row, *self._form.fill(messages[row], self._run)
            except ValueError as error:
                outcomes.fail(row, PERMANENT, f"no such mail: {str(error).splitlines()[0][:80]}")

    def _connect(self) -> smtplib.SMTP:
        if self._tls == "tls":
            smtp: smtplib.SMTP = smtplib.SMTP_SSL(
                self._host, self._port, timeout=self._timeout_s, context=self._context
            )
        else:
            smtp = smtplib.SMTP(self._host, self._port, timeout=self._timeout_s)
        try:
            sock: Any = smtp.sock
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls == "starttls":
                smtp.starttls(context=self._context)
            if self._user:
                smtp.login(self._user, self._password)
            smtp.ehlo_or_helo_if_needed()
            if self._tls == "none":
                wait_in_kernel(sock, self._timeout_s)
        except BaseException:
            smtp.close()
            raise
        return smtp


def _server(options: Fields, port: int) -> tuple[str, int]:
    text = options.text("server", like="mail.example.org:587")
    host, colon, number = text.rpartition(":")
    if not colon:
        return text, port
    if not host or not (number.isascii() and number.isdecimal() and 0 < int(number) <= _LARGEST_PORT):
        options.fault("server", f"{text!r} is not host or host:port")
        return text, port
    return host.strip("[]"), int(number)
