"""Addresses of recipients: taken as they stand, or refused; what reaches the server is what stood in the column."""

import smtplib
import socket
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.kit.campaign import mail_server
from tests.kit.wire import Wire, wire
from tests.unit.campaign.test_senders import RUN, messages, smtp

from capline.campaign.senders.address import parse_address
from capline.campaign.senders.protocol import DELIVERED, PERMANENT

REFUSED = {
    "": "the address is empty",
    "a@x.org SIZE=1": "the address has a space",
    " a@x.org": "the address has a space",
    "a@x.org ": "the address has a space",
    "a b@x.org": "the address has a space",
    '"a b"@x.org': "the address has a space",
    "Anna <a@x.org SIZE=1>": "the address has a space",
    "a\0@x.org": "the address has a character that cannot be printed",
    "a@x.org\r\nRCPT TO:<b@x.org>": "the address has a character that cannot be printed",
    "a@x.org\t": "the address has a character that cannot be printed",
    "a\x7f@x.org": "the address has a character that cannot be printed",
    "a\u200b@x.org": "the address has a character that cannot be printed",
    "\ud800@x.org": "the address has a character that cannot be printed",
    "a@x.org,b@x.org": "it is not an address",
    "a@x.org>": "it is not an address",
    "<a@x.org><b@x.org>": "it is not an address",
    "a": "it is not an address",
    "a@": "it is not an address",
    "@x.org": "it is not an address",
    "a@b@x.org": "it is not an address",
    "a..b@x.org": "it is not an address",
    "a@x..org": "it is not an address",
    "a@-x.org": "it is not an address",
    "a@[192.0.2.1]": "it is not an address",
    "a@x.org (comment)": "the address has a space",
    "a" * 65 + "@x.org": "the address is too long",
    "a@" + "x" * 64 + ".org": "the address is too long",
    "a@" + ".".join(["x" * 60] * 5): "the address is too long",
}
TAKEN = {
    "a@x.org": "a@x.org",
    "a.b+c@x-y.example.org": "a.b+c@x-y.example.org",
    "o'hara@x.org": "o'hara@x.org",
    "<a@x.org>": "a@x.org",
    "Anna <a@x.org>": "a@x.org",
    'Doe, "J" <a@x.org>': "a@x.org",
    "Zoë <a@x.org>": "a@x.org",
    "anna@bücher.example": "anna@bücher.example",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_address_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(ValueError, match=f"^{REFUSED[text]}$"):
        parse_address(text)


@pytest.mark.parametrize("text", TAKEN)
def test_what_is_one_is_taken_as_it_stands(text: str) -> None:
    assert parse_address(text).addr_spec == TAKEN[text]


@given(st.one_of(st.text(max_size=20), st.from_regex(r"[ -~]{0,8}@[ -~]{0,8}", fullmatch=True)))
@example("a@x.org SIZE=1")
@example("a(b)@x.org")
def test_the_standard_library_would_send_to_the_very_same(text: str) -> None:
    try:
        address = parse_address(text)
    except ValueError:
        return
    plain = f"{address.username}@{address.domain}"
    assert plain in text
    assert smtplib.quoteaddr(plain) == f"<{plain}>"


def test_a_refused_recipient_costs_the_others_nothing(tmp_path: Path) -> None:
    emails = ["a@x.org", "a@x.org SIZE=1", "b\0@x.org", "Anna, of X <c@x.org>", "anna@bücher.example", "d@x.org"]
    with mail_server() as (box, port), closing(smtp(tmp_path, port)) as sender:
        sender.open(RUN)
        outcomes = sender.send(messages(*range(6), emails=emails))
    assert outcomes.codes.tolist() == [DELIVERED, PERMANENT, PERMANENT, DELIVERED, PERMANENT, DELIVERED]
    assert outcomes.reasons == {
        1: "no such mail: the address has a space",
        2: "no such mail: the address has a character that cannot be printed",
        4: "an address needs SMTPUTF8, which the server does not have",
    }
    assert [to for to, _ in box.mails] == ["a@x.org", "c@x.org", "d@x.org"]
    assert 'To: "Anna, of X" <c@x.org>' in box.mails[1][1]


def test_an_address_in_a_header_needs_smtputf8_too(tmp_path: Path) -> None:
    headers = {"Reply-To": "{email}"}
    with mail_server() as (box, port), closing(smtp(tmp_path, port, to="a@x.org", headers=headers)) as sender:
        sender.open(RUN)
        outcomes = sender.send(messages(1, 2, emails=["b@x.org", "anna@bücher.example"]))
    assert outcomes.reasons == {1: "an address needs SMTPUTF8, which the server does not have"}
    assert (outcomes.codes[1], len(box.mails)) == (PERMANENT, 1)


def test_with_smtputf8_the_address_goes_as_it_stands(tmp_path: Path) -> None:
    def serve(connection: socket.socket, far: Wire) -> None:
        connection.sendall(b"220 hi\r\n")
        hello = b"250-hello\r\n250-8BITMIME\r\n250 SMTPUTF8\r\n"
        for number, answer in enumerate([hello, b"250 fine\r\n", b"250 fine\r\n", b"354 go on\r\n", b"250 taken\r\n"]):
            data = b""
            while not data.endswith(b"\r\n.\r\n" if number == 4 else b"\r\n"):
                data += connection.recv(65536)
            far.seen.append(data)
            connection.sendall(answer)

    with wire(serve) as far, closing(smtp(tmp_path, far.port)) as sender:
        sender.open(RUN)
        outcomes = sender.send(messages(1, emails=["anna@bücher.example"]))
    assert outcomes.codes.tolist() == [DELIVERED]
    # The verb before it each Python spells in its own way.
    assert far.seen[2][8:] == "<anna@bücher.example>\r\n".encode()


def test_a_mail_with_control_characters_is_refused(tmp_path: Path) -> None:
    with mail_server() as (box, port), closing(smtp(tmp_path, port, text="Hello {name}")) as sender:
        sender.open(RUN)
        outcomes = sender.send(replace(messages(1), columns={"email": ["u1@example.org"], "name": ["Ann\0"]}))
    assert outcomes.reasons == {0: "no such mail: the text has a control character"}
    assert box.mails == []
