"""Prometheus metrics that are read on demand: figures of named sources, when a registry is scraped."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

from capline.model.errors import CaplineError, InvalidValueError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

MOST_SOURCES = 1000

S = TypeVar("S")


class NamedSources(Generic[S]):
    """The sources of one kind of metrics, each under a name, in a registry: prometheus-client's own or the one given.

    `kind` and `source` are for messages: "segment" metrics of a "watch". In prometheus-client's multiprocess mode the
    figures are not exported, since it does not gather what is read on demand.
    """

    def __init__(self, kind: str, source: str, registry: CollectorRegistry | None) -> None:
        with needs_prometheus():
            from prometheus_client import REGISTRY  # noqa: PLC0415 - an extra, not always there
        self._sources: dict[str, S] = {}
        self._kind = kind
        try:
            (REGISTRY if registry is None else registry).register(self)
        except ValueError:
            raise InvalidValueError(f"this registry has {kind} metrics already; add the {source} to those") from None

    def add(self, name: str, source: S) -> None:
        """Export this source under this name, in place of an earlier one of that name."""
        if name not in self._sources and len(self._sources) >= MOST_SOURCES:
            raise InvalidValueError(f"more than {MOST_SOURCES} sources of {self._kind} metrics; share them")
        self._sources = {**self._sources, name: source}

    @abstractmethod
    def collect(self) -> Iterable[Metric]:
        """Read the figures; prometheus-client calls it."""

    def describe(self) -> Iterable[Metric]:
        """The metrics, so that the registry can refuse duplicates; prometheus-client calls it."""
        return self.collect()


@contextmanager
def needs_prometheus() -> Generator[None]:
    """Turn the import error of a missing prometheus-client into a `CaplineError` that says what to install."""
    try:
        yield
    except ImportError:
        raise CaplineError('metrics need prometheus-client: pip install "capline[prometheus]"') from None
