"""Mail over several pipelined connections: what goes where, and how often, by a server that counts for itself."""

import email
import email.policy
import html
import json
import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.campaign import Site, ledger_of
from tests.kit.wire import Wire, wire
from tests.unit.campaign.test_senders import RUN, build, messages

from capline.campaign import Report, Stop, report_of, run
from capline.campaign.file import loads_campaign
from capline.campaign.senders.mail import MailForm
from capline.campaign.senders.protocol import DELIVERED, PERMANENT, TRANSIENT, UNKNOWN, Message, Sender
from capline.forms.fields import Fields
from capline.forms.tree import read_tree
from capline.model.errors import CampaignError

TEXTS = {
    "from": "Shop <news@shop.example>",
    "to": "u{id}@x.org",
    "subject": "For {id}",
    "text": "Hello {id}\n.\n.Bye\n",
}
DROP = "drop"
"""An answer that is none: the connection is closed."""


@dataclass
class Server:
    """Speaks SMTP with PIPELINING, and holds clients to it. `says(command, to, tries)` is an answer other than yes."""

    says: Callable[[str, str, int], str | None] = lambda _command, _to, _tries: None
    pipelining: bool = True
    mails: list[tuple[str, bytes]] = field(default_factory=list[tuple[str, bytes]])
    tries: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    groups: int = 0
    connections: int = 0
    drops: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def asked(self, command: str, to: str) -> str | None:
        with self.lock:
            self.tries[command, to] += 1
            tries = self.tries[command, to]
        return self.says(command, to, tries)

    def serve(self, connection: socket.socket, _far: Wire) -> None:  # noqa: C901, PLR0912 - one talk to its end
        with self.lock:
            self.connections += 1
        connection.sendall(b"220 far\r\n")
        left, to, in_mail, in_data = b"", "", False, False
        while piece := connection.recv(1 << 20):
            left += piece
            if not left.endswith(b"\r\n"):
                continue
            self.groups += 1
            answers: list[str] = []
            while left:
                line, _, left = left.partition(b"\r\n.\r\n" if in_data else b"\r\n")
                assert self.pipelining or not left, "one command at a time"
                if in_data:
                    in_data = in_mail = False
                    assert b"\r\n." not in line.replace(b"\r\n..", b""), "each dot at a line's start comes twice"
                    said = self.asked("mail", to)
                    if said is None or said == DROP:
                        with self.lock:
                            self.mails.append((to, line.replace(b"\r\n..", b"\r\n.")))
                    answer = said if said is not None else "250 taken"
                elif line.upper().startswith(b"EHLO"):
                    answer = "250-far\r\n250 PIPELINING" if self.pipelining else "250 far"
                elif line == b"RSET":
                    in_mail, to, answer = False, "", "250 reset"
                elif line.startswith(b"MAIL FROM:<"):
                    assert not in_mail, "a transaction within another"
                    answer = self.asked("MAIL", "") or "250 from"
                    in_mail, to = answer.startswith("2"), ""
                elif line.startswith(b"RCPT TO:<"):
                    name = line[9:-1].decode()
                    answer = "503 no sender" if not in_mail else self.asked("RCPT", name) or "250 to"
                    to = name if answer.startswith("2") else ""
                elif line == b"DATA":
                    assert not left, "nothing may follow DATA in a group"
                    in_data = bool(to)
                    answer = "354 go on" if to else "503 for nobody"
                else:
                    answer = "221 bye"
                answers.append(answer)
                if answer == DROP:
                    break
            connection.sendall("".join(f"{answer}\r\n" for answer in answers if answer != DROP).encode())
            if DROP in answers:
                with self.lock:
                    self.drops += 1
                return

    def got(self) -> Counter[str]:
        return Counter(to for to, _ in self.mails)


def options(port: int, **more: Any) -> str:
    return json.dumps({"smtp": {"server": f"127.0.0.1:{port}", "tls": "none", "breaker": 0, **TEXTS, **more}})


def smtp(tmp_path: Path, port: int, **more: Any) -> Sender:
    return build(tmp_path, options(port, **more))


@pytest.mark.parametrize("pipelining", [True, False])
def test_a_mail_is_a_round_trip_where_the_server_can_pipeline(tmp_path: Path, pipelining: bool) -> None:
    server = Server(pipelining=pipelining)
    with wire(server.serve) as far, closing(smtp(tmp_path, far.port, connections=1)) as sender:
        sender.open(RUN)
        before = server.groups
        assert set(sender.send(messages(*range(20))).codes.tolist()) == {DELIVERED}
        assert server.groups - before == (21 if pipelining else 80)
    assert [to for to, _ in server.mails] == [f"u{number}@x.org" for number in range(20)]
    assert b"\r\n=2E\r\n.Bye" in server.mails[0][1]


def test_all_connections_take_part_and_nobody_gets_it_twice(tmp_path: Path) -> None:
    together = threading.Barrier(3, timeout=60)

    def says(command: str, _to: str, _tries: int) -> None:
        if command == "MAIL":
            together.wait()

    server = Server(says)
    with wire(server.serve) as far, closing(smtp(tmp_path, far.port, connections=3)) as sender:
        assert (sender.most, sender.at_once) == (150, 3)  # type: ignore[attr-defined]
        sender.open(RUN)
        assert set(sender.send(messages(*range(60))).codes.tolist()) == {DELIVERED}
    assert server.connections == 3
    assert server.got() == dict.fromkeys([f"u{number}@x.org" for number in range(60)], 1)


REFUSALS = {
    "u1@x.org": ("RCPT", "550 kein Empfänger", PERMANENT, "SMTP 550"),
    "u2@x.org": ("RCPT", "451 later", TRANSIENT, "SMTP 451"),
    "u4@x.org": ("mail", "552 too big", PERMANENT, "SMTP 552"),
    "u5@x.org": ("mail", "452 満杯", TRANSIENT, "SMTP 452"),
    "u7@x.org": ("mail", "garbage", UNKNOWN, "no answer (not SMTP)"),
    "u9@x.org": ("mail", DROP, UNKNOWN, "no answer (it closed the connection)"),
    "u11@x.org": ("RCPT", DROP, TRANSIENT, "no answer (it closed the connection)"),
    "u13@x.org": ("RCPT", "421 closing", TRANSIENT, "SMTP 421"),
}


NEXT = {
    "u8@x.org": (TRANSIENT, "no answer (not SMTP)"),
    "u10@x.org": (TRANSIENT, "no answer (it closed the connection)"),
}
"""What was offered in the group of a mail after which the connection was lost."""


@pytest.mark.parametrize("pipelining", [True, False])
def test_a_refusal_is_one_mail_s_and_the_next_go_on(tmp_path: Path, pipelining: bool) -> None:
    def says(command: str, to: str, _tries: int) -> str | None:
        where, answer, *_ = REFUSALS.get(to, ("", ""))
        return answer if command == where else None

    server = Server(says, pipelining)
    with wire(server.serve) as far, closing(smtp(tmp_path, far.port, connections=1)) as sender:
        sender.open(RUN)
        outcomes = sender.send(messages(*range(16)))
    said = {f"u{row}@x.org": (int(outcomes.codes[row]), reason) for row, reason in outcomes.reasons.items()}
    assert said == {**NEXT, **{to: (code, reason) for to, (_, _, code, reason) in REFUSALS.items()}}
    assert set(server.got().values()) == {1}
    refused = (REFUSALS.keys() | NEXT.keys()) - {"u9@x.org"}
    assert {f"u{row}@x.org" for row in range(16)} - server.got().keys() == refused


def test_a_server_that_takes_a_mail_for_nobody_gets_an_empty_one(tmp_path: Path) -> None:
    """Some say 354 though no recipient was good: the end is sent, and what follows is in step."""
    yes, go_on = b"250 yes\r\n", b"354 go on\r\n"
    answers = [yes, yes, b"550 gone\r\n", go_on, b"554 none\r\n", yes, yes, yes, go_on, yes]
    seen: list[bytes] = []

    def serve(connection: socket.socket, _far: Wire) -> None:
        connection.sendall(b"220 far\r\n")
        for answer in answers:
            data = b""
            while not data.endswith(b".\r\n" if seen and seen[-1] == b"DATA\r\n" else b"\r\n"):
                data += connection.recv(65536)
            seen.append(data)
            connection.sendall(answer)

    with wire(serve) as far, closing(smtp(tmp_path, far.port, connections=1)) as sender:
        sender.open(RUN)
        assert sender.send(messages(1, 2)).codes.tolist() == [PERMANENT, DELIVERED]
    assert seen[4:6] == [b".\r\n", b"RSET\r\n"]


def test_a_reply_without_end_is_none(tmp_path: Path) -> None:
    def serve(connection: socket.socket, _far: Wire) -> None:
        for answer in (b"220 far\r\n", b"250 far\r\n"):
            connection.sendall(answer)
            connection.recv(65536)
        while True:
            connection.sendall(b"250-and more\r\n" * 1000)

    with wire(serve) as far, closing(smtp(tmp_path, far.port, connections=1)) as sender:
        sender.open(RUN)
        outcomes = sender.send(messages(1))
    assert (outcomes.codes.tolist(), outcomes.reasons) == ([TRANSIENT], {0: "no answer (not SMTP)"})


def go(site: Site, directory: Path, pauses: Callable[[float], object] = lambda _s: None, **settings: str) -> Report:
    job = site.job(**settings)
    with job.open_limiter("memory://") as limiter, closing(Stop()) as stop, ledger_of(job, directory) as ledger:
        run(job, limiter, ledger, stop, pause=pauses)
        return report_of(ledger)


@pytest.mark.parametrize("where", ["MAIL", "RCPT", "mail"])
def test_a_server_that_throttles_or_greylists_gets_each_mail_once(tmp_path: Path, where: str) -> None:
    """Greylisting refuses every first try; throttling every third command of all."""

    def says(command: str, _to: str, tries: int) -> str | None:
        if command != where:
            return None
        return "450 4.7.1 slow down" if (tries % 3 == 0 if command == "MAIL" else tries == 1) else None

    server = Server(says)
    with wire(server.serve) as far:
        retry = "{attempts: 30, wait: 0.001, longest: 0.002}"
        total = go(Site(tmp_path), tmp_path / "run", sender=options(far.port, connections=4), retry=retry).total
    assert (total.sent, total.failed, total.not_known) == (400, 0, 0)
    assert server.got() == dict.fromkeys([f"u{number}@x.org" for number in range(400)], 1)


@pytest.mark.parametrize("again", [False, True])
def test_a_server_that_drops_connections_half_way_gets_one_twice_for_each_at_most(tmp_path: Path, again: bool) -> None:
    """It has taken the mail and says nothing: without `again` nobody gets two, with it one for each lost connection."""

    def says(command: str, to: str, tries: int) -> str | None:
        number = int(to[1:].partition("@")[0] or 0) if to else 0
        return DROP if (command, tries) == ("mail", 1) and number % 7 == 3 else None

    server = Server(says)
    with wire(server.serve) as far:
        total = go(Site(tmp_path), tmp_path / "run", sender=options(far.port, connections=4, again=again)).total
    twice = sum(count - 1 for count in server.got().values())
    assert len(server.got()) == 400, "nobody is forgotten"
    assert server.drops == 57
    assert (total.sent, total.not_known) == ((400, 0) if again else (400 - 57, 57))
    assert twice == (57 if again else 0)
    ids = {to: {line for line in data.split(b"\r\n") if line.startswith(b"Message-ID")} for to, data in server.mails}
    assert all(len(of_one) == 1 for of_one in ids.values())


def test_connections_that_a_server_does_not_take_are_left_out(tmp_path: Path) -> None:
    """The second is refused at each hand-over: the first does all the work."""
    server = Server()
    taken: list[int] = []

    def serve(connection: socket.socket, far: Wire) -> None:
        taken.append(1)
        if len(taken) > 1:
            connection.sendall(b"421 too many connections\r\n")
        else:
            server.serve(connection, far)

    with wire(serve) as far, closing(smtp(tmp_path, far.port, connections=2)) as sender:
        sender.open(RUN)
        outcomes = sender.send(messages(*range(10)))
    refused = [row for row, reason in outcomes.reasons.items() if reason == "SMTP 421"]
    assert len(refused) <= 1
    assert len(server.got()) == 10 - len(refused)


# ---- what a mail is


def form(**more: Any) -> MailForm:
    node, faults = read_tree(json.dumps({**TEXTS, **more}))
    assert node is not None
    made = MailForm(Fields(node, "", faults))
    assert not faults
    return made


FULL: dict[str, Any] = {
    "to": '"{name}" <u{id}@x.org>',
    "subject": "For {name}!",
    "text": "Dear {name},\nhello",
    "html": "<p title='{name}'>{name}</p>",
    "headers": {"X-Name": "{name}", "Reply-To": "{name} <help@shop.example>"},
    "unsubscribe": "https://shop.example/u/{key}?n={name}",
}
SAID = ["Zoë 李 🎉", "<script>x('y')</script> & Co", "=?utf-8?q?hidden=0ABcc:_all?=", "a" * 300, "é" * 100, "", "  "]
LINES = [
    "From", "To", "Subject", "X-Name", "Date", "Message-ID", "X-Capline-Key", "MIME-Version", "List-Unsubscribe",
    "List-Unsubscribe-Post", "Content-Type",
]  # fmt: skip
ONE_LINE = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\u2028\u2029")
BREAKS = ["a\nBcc: all@x.org", "a\r\n\r\nbody", "a\rb", "a\x0bb", "a\x00b", "a\x85b", "a\u2028b", "\x1b[31m"]


def read(data: bytes) -> Any:
    return email.message_from_bytes(data, policy=email.policy.default)


@given(st.text(alphabet=ONE_LINE, max_size=60))
def test_whatever_a_field_holds_it_is_that_text_in_each_place(name: str) -> None:
    for value in (name, *SAID):
        message = Message(7, "sale/r1/7", "active", {"name": value})
        names = form(**{key: text for key, text in FULL.items() if key != "to"} | {"headers": {"X-Name": "{name}"}})
        _, data = names.fill(message, RUN)
        assert max(map(len, data.split(b"\r\n"))) <= 998
        assert data.replace(b"\r\n", b"").isascii()
        assert b"\n" not in data.replace(b"\r\n", b"")
        mail = read(data)
        assert mail.keys() == LINES
        if value.isprintable() and value == " ".join(value.split()) and "=?" not in value:
            assert mail["Subject"] == f"For {value}!"
            assert mail["X-Name"] == value
        link = mail["List-Unsubscribe"].strip("<>")
        assert unquote(link).replace(" ", "") == f"https://shop.example/u/sale/r1/7?n={value}".replace(" ", "")
        assert mail["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
        text, page = mail.iter_parts()
        assert text.get_content().replace("\r", "") == f"Dear {value},\nhello" or not value.isprintable()
        shown = page.get_content()
        assert html.unescape(shown) == f"<p title='{value}'>{value}</p>" or not value.isprintable()
        assert shown.count("<") == 2


@pytest.mark.parametrize("value", BREAKS)
@pytest.mark.parametrize("place", ["to", "subject", "headers"])
def test_no_value_ends_a_header(value: str, place: str) -> None:
    made = form(**{place: FULL[place]})
    with pytest.raises(ValueError, match=r"control character|cannot be printed|address"):
        made.fill(Message(7, "sale/r1/7", None, {"name": value}), RUN)


@pytest.mark.parametrize("value", BREAKS)
def test_line_breaks_in_text_html_and_links_stay_there(value: str) -> None:
    made = form(text=FULL["text"], html=FULL["html"], unsubscribe=FULL["unsubscribe"])
    message = Message(7, "sale/r1/7", None, {"name": value})
    if "\0" in value:
        with pytest.raises(ValueError, match="control character"):
            made.fill(message, RUN)
        return
    mail = read(made.fill(message, RUN)[1])
    assert "Bcc" not in mail
    assert mail["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
    assert len(list(mail.iter_parts())) == 2


@pytest.mark.parametrize("name", ["Anna, of X", 'the "Fox" \\', "Zoë 李", "=?utf-8?q?x?=", "n" * 200, "é" * 200])
def test_a_name_before_an_address_is_that_name(name: str) -> None:
    made = form(to="{name} <u{id}@x.org>", headers={"Reply-To": "{name} <help@shop.example>"})
    to, data = made.fill(Message(7, "sale/r1/7", None, {"name": name}), RUN)
    assert to == "u7@x.org"
    for header, address in (("To", "u7@x.org"), ("Reply-To", "help@shop.example")):
        (one,) = read(data)[header].addresses
        # The library's parser puts spaces between encoded words, which RFC 2047 has ignored.
        assert (one.display_name.replace(" ", ""), one.addr_spec) == (name.replace(" ", ""), address)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"headers": {"Bcc": "a@b.c"}}, "Bcc is set for each mail; leave it out"),
        ({"headers": {"A B": "x"}}, "'A B' is not a header's name"),
        ({"headers": {"X-A": "{0}"}}, "X-A: '{0}': a placeholder is a plain name"),
        ({"unsubscribe": "http://shop.example/{key}"}, "is not like 'https://shop.example"),
        ({"unsubscribe": "https://{name}/"}, "is not like 'https://shop.example"),
        ({"unsubscribe": "https://shop.example/a>b c"}, "is not like 'https://shop.example"),
        ({"connections": 0}, "connections: expected a whole number from 1 to 100"),
    ],
)
def test_options_that_are_none(more: dict[str, Any], said: str) -> None:
    text = f"campaign: c\npolicies: p\npolicy: p\naudience: {{csv: u.csv}}\nsender: {options(25, **more)}\n"
    with pytest.raises(CampaignError) as caught:
        loads_campaign(text, Path("c.yaml"))
    assert said in str(caught.value)
