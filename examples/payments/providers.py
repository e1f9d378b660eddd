"""The file of providers: what each allows, how much the way to it differs, and where it is.

    acme-pay: {limit: 100/s, jitter: 20ms, url: https://api.acme.example}

Each becomes one policy of its own name, with the limits that `Limit.margin` makes of `limit` and `jitter`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from capline import CaplineError, Limit, Policy

if TYPE_CHECKING:
    from pathlib import Path

FORM = "write it like acme-pay: {limit: 100/s, jitter: 20ms}"
KEYS = {"limit", "jitter", "url"}


class ProvidersError(Exception):
    """A file of providers that cannot be used; one line."""


@dataclass(frozen=True)
class Provider:
    """One provider; `url` is None where it is to be played on this machine."""

    name: str
    limit: str
    jitter: str
    url: str | None = None

    @property
    def strict(self) -> Limit:
        """What it allows, by its own count."""
        return Limit.parse(self.limit)

    @property
    def policy(self) -> Policy:
        """What we allow: its limit, with room for the way."""
        return Policy(self.name, list(Limit.margin(self.limit, jitter=self.jitter)))

    @property
    def slack(self) -> float:
        """Seconds that a call may leave late for its slot: two fifths of the jitter; the rest is for the network."""
        return 0.4 * (self.policy.limits[0].window_us - self.strict.window_us) / 1e6


def load(path: Path) -> list[Provider]:
    """Read the file; raises `ProvidersError`."""
    try:
        entries: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProvidersError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ProvidersError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(entries, dict) or not entries:
        raise ProvidersError(f"{path}: no providers; {FORM}")
    return [_provider(path, str(name), entry) for name, entry in entries.items()]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - YAML has no types


def _provider(path: Path, name: str, entry: Any) -> Provider:
    if not isinstance(entry, dict) or not {"limit", "jitter"} <= set(entry) <= KEYS:  # pyright: ignore[reportUnknownArgumentType] - YAML has no types
        raise ProvidersError(f"{path}: {name} has a limit, a jitter and perhaps a url; {FORM}")
    provider = Provider(name, **{key: str(entry[key]) for key in entry})  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - as above
    try:
        _ = provider.policy
    except CaplineError as error:
        raise ProvidersError(f"{path}: {name}: {error}") from None
    return provider
