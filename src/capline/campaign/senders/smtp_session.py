"""One SMTP connection that takes mail after mail, a round trip for each where the server has PIPELINING (RFC 2920).

    to the server                                      from it
    MAIL FROM  RCPT TO  DATA                           250 250 354        "go on": mail 1 may leave
    mail 1 .   MAIL FROM  RCPT TO  DATA                250 250 250 354    mail 1 is accepted
    mail 2 .                                           250                the last one

The rule: one mail at most is out without an answer, so a lost connection leaves one that may have been accepted. Of any
other the server cannot have the last line.
"""

import smtplib
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import zip_longest
from typing import Any

from capline.campaign.senders.protocol import PERMANENT, TRANSIENT, UNKNOWN
from capline.support.network import CLOSED, network_fault

_TAKEN, _GO_ON = range(200, 300), range(354, 355)
_LATER, _NEVER = range(400, 500), range(500, 600)
_CLOSING = 421
_LONGEST_REPLY_BYTES = 8192
_IDLE_S = 20.0


class Session:
    """Sends mails from one address over a connection at a time; `connect` makes it, again when it was lost."""

    def __init__(self, connect: Callable[[], smtplib.SMTP], sender: str) -> None:
        self._connect = connect
        self._sender = sender
        self._smtp: smtplib.SMTP | None = None
        self._given: tuple[int, bytes] | None = None
        self._is_open = self._is_pipelined = False
        self._lost = ""
        self._used_s = 0.0
        self._received = b""

    def open(self) -> None:
        """Connect, unless it is connected; `OSError` where the server cannot be reached, or refuses."""
        if time.monotonic() - self._used_s > _IDLE_S:
            self._ask(b"NOOP\r\n")  # a server may have closed what was idle
        if self._smtp is None:
            self._smtp, self._is_open = self._connect(), False
            self._is_pipelined = self._smtp.has_extn("pipelining")
            self._used_s = time.monotonic()

    def deliver(self, mails: Iterable[tuple[int, str, bytes]], tell: Callable[[int, int, str], object]) -> str:
        """Send mails, each a row, an address and its bytes; tell of each row its code of `protocol`, and the reason.

        Returns why it ended before all were sent: the server cannot be reached; empty when they are.
        """
        for row, to, data in mails:
            try:
                self.open()
            except OSError as error:
                tell(row, TRANSIENT, reason_of(error))
                return reason_of(error)
            self._offer(row, to, data, tell)
        self._exchange([], tell)
        return ""

    def close(self) -> None:
        """Send QUIT and close the connection."""
        if self._smtp is not None:
            with suppress(OSError):
                self._smtp.quit()
            self._drop("closed")

    def _offer(self, row: int, to: str, data: bytes, tell: Callable[[int, int, str], object]) -> None:
        """Send the mail that waits, and ask whether this one may be sent: it then waits in its turn."""
        options = "" if to.isascii() and data.isascii() else " SMTPUTF8 BODY=8BITMIME"
        if options and self._smtp is not None and not self._smtp.has_extn("smtputf8"):
            tell(row, PERMANENT, "an address needs SMTPUTF8, which the server does not have")
            return
        commands = [f"MAIL FROM:<{self._sender}>{options}\r\n", f"RCPT TO:<{to}>\r\n", "DATA\r\n"]
        reset = ["RSET\r\n"] if self._is_open else []
        replies = self._exchange([command.encode() for command in reset + commands], tell)[len(reset) :]
        wanted = zip_longest(replies, (_TAKEN, _TAKEN, _GO_ON))
        refused = [reply for reply, good in wanted if reply is None or reply not in good]
        self._is_open = bool(refused)
        if not refused:
            self._given = row, data
            return
        if replies[-1:] == [_GO_ON.start]:
            self._ask(b".\r\n")  # it takes a mail for nobody: an empty one
        code = PERMANENT if refused[0] in _NEVER else TRANSIENT
        tell(row, code, f"SMTP {refused[0]}" if refused[0] else self._lost)

    def _exchange(self, commands: list[bytes], tell: Callable[[int, int, str], object]) -> list[int]:
        """Send what waits, then the commands; the replies to these, fewer where the connection was lost."""
        if self._given is None:
            return self._ask(*commands)
        (row, data), self._given = self._given, None
        # It begins with a header: no dot is at its start.
        mail = data.replace(b"\n.", b"\n..") + (b".\r\n" if data.endswith(b"\r\n") else b"\r\n.\r\n")
        replies = self._ask(mail, *commands)
        reply = replies[0] if replies else 0
        if reply in _LATER or reply in _NEVER:
            tell(row, TRANSIENT if reply in _LATER else PERMANENT, f"SMTP {reply}")
        elif reply not in _TAKEN:
            tell(row, UNKNOWN, self._lost)
        return replies[1:]

    def _ask(self, *commands: bytes) -> list[int]:
        replies: list[int] = []
        smtp = self._smtp
        if smtp is None or not commands:
            return replies
        self._used_s = time.monotonic()
        try:
            for group in [commands] if self._is_pipelined else [(command,) for command in commands]:
                smtp.send(b"".join(group))
                for _ in group:
                    replies.append(self._reply(smtp))
                    if replies[-1] == _CLOSING or not _TAKEN.start <= replies[-1] < _NEVER.stop:
                        self._drop(f"SMTP {_CLOSING}" if replies[-1] == _CLOSING else "no answer (not SMTP)")
                        return replies
        except OSError as error:
            self._drop(reason_of(error))
        return replies

    def _reply(self, smtp: smtplib.SMTP) -> int:
        """The code of a whole reply, 0 if it is not a reply: `getreply` of `smtplib`, in a fraction of its time."""
        sock: Any = smtp.sock
        size = 0
        while size <= _LONGEST_REPLY_BYTES:
            line, whole, behind = self._received.partition(b"\n")
            if whole:
                self._received = behind
                size += len(line)
                if line[3:4] != b"-":
                    return int(line[:3]) if line[:3].isdigit() else 0
            elif len(line) > _LONGEST_REPLY_BYTES:
                return 0
            elif data := sock.recv(_LONGEST_REPLY_BYTES):
                self._received += data
            else:
                raise smtplib.SMTPServerDisconnected
        return 0

    def _drop(self, why: str) -> None:
        self._lost, self._received = why, b""
        if self._smtp is not None:
            self._smtp.close()
            self._smtp = None


def reason_of(error: OSError) -> str:
    """Why a server was not reached, or what it said instead of good day; `smtplib`'s exceptions are all OSErrors."""
    if isinstance(error, smtplib.SMTPResponseException):
        return f"SMTP {error.smtp_code}"
    return f"no answer ({CLOSED if isinstance(error, smtplib.SMTPServerDisconnected) else network_fault(error)})"
