"""The policy file: YAML text in, policies out, or every fault with its line.

    namespace: marketing                      optional; "capline" unless said
    policies:
      promo:
        limits: [1/day, 2/week]               subjects in no segment
        by_segment: {new: [1/day, 3/week]}    optional
        channels: {push: [2/day]}             optional
        log: promo                            optional, as are layout, population, wait_replicas, algorithm,
                                              count_denied and reservations

The rule: a file is accepted whole or not at all, and an error lists all faults. Three steps: bytes to text here, text
to a tree in `capline.forms.tree`, tree to policies in `form`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from capline.forms.tree import Fault, in_one_line, read_tree
from capline.model.errors import InvalidTypeError, PolicyError
from capline.model.policy import Policy, check_no_replicas
from capline.policy.form import read_form
from capline.support.system import NOT_BLOCKING

LARGEST_FILE_BYTES = 16 << 20
MOST_NODES = 1_500_000
"""Values in a policy file: enough for 100,000 policies, of which a plain one has five."""


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """A policy file: its namespace, and its policies in the order of the file."""

    namespace: str
    policies: tuple[Policy, ...]


class PolicyFileError(PolicyError):
    """A policy file that cannot be used; none of it was.

    The message is one line: file, line, place, what is wrong and the fix of the first fault, then where others are.
    `faults` has them all, as (line, text) in the order of the file; line 0 is the file as a whole.
    """

    def __init__(self, message: str, faults: Sequence[Fault] = ()) -> None:
        super().__init__(message)
        self.faults = tuple(faults)

    @classmethod
    def of(cls, name: str, faults: Sequence[Fault]) -> PolicyFileError:
        """Make the error of all these faults (at least one) in the file of this name."""
        return cls(in_one_line(name, faults), sorted(faults, key=itemgetter(0)))


def check_for_local(file: PolicyFile) -> None:
    """Raise `InvalidValueError` if a policy needs what stores on this machine have not: replicas to wait for."""
    for policy in file.policies:
        check_no_replicas(policy)


def load(path: str | os.PathLike[str]) -> PolicyFile:
    """Read a policy file of at most 16 MiB of UTF-8; raises `PolicyFileError` with every fault and its line.

    Costs about 1 ms for a file of ten policies, in proportion for more.
    """
    data, _ = read_bytes(path)
    return loads(data, name=os.fspath(path))


def loads(text: str | bytes, name: str = "policies.yaml") -> PolicyFile:
    """Read policies from text or UTF-8 bytes; `name` is the file's name in errors. Otherwise like `load`."""
    if isinstance(text, bytes):
        text = _decoded(text, name)
    elif not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
        raise InvalidTypeError(f"policies come as text or bytes, not {type(text).__name__}; for a file use load(path)")
    if len(text) > LARGEST_FILE_BYTES:
        raise _too_large(name)
    root, faults = read_tree(text, MOST_NODES)
    namespace, policies = read_form(root, faults)
    if faults:
        raise PolicyFileError.of(name, faults)
    return PolicyFile(namespace, policies)


def read_bytes(path: str | os.PathLike[str]) -> tuple[bytes, os.stat_result]:
    """The file's bytes, and its state before they were read; raises `PolicyFileError` if it cannot be read.

    Never blocks: pipes and devices are refused.
    """
    try:
        name = os.fsdecode(path)
    except TypeError:
        raise InvalidTypeError(f"a policy file is named by its path, not by {path!r}") from None
    try:
        with open(name, "rb", opener=lambda path, flags: os.open(path, flags | NOT_BLOCKING)) as file:
            state = os.fstat(file.fileno())
            if not stat.S_ISREG(state.st_mode):
                raise PolicyFileError.of(name, [(0, "not a regular file; name a file that holds the policies")])
            data = file.read(LARGEST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, PolicyFileError):
            raise
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        if isinstance(error, FileNotFoundError):
            reason += "; name the file (--policies FILE), or let capline init write one"
        raise PolicyFileError.of(name, [(0, f"cannot be read: {reason}")]) from None
    if len(data) > LARGEST_FILE_BYTES:
        raise _too_large(name)
    return data, state


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        fault = f"byte 0x{data[error.start]:02X} is not UTF-8; save the file as UTF-8"
        raise PolicyFileError.of(name, [(line, fault)]) from None


def _too_large(name: str) -> PolicyFileError:
    return PolicyFileError.of(
        name, [(0, f"larger than {LARGEST_FILE_BYTES} bytes; more policies are kept in a configuration store")]
    )
