"""An object store that also works in a forked process.

obstore runs its requests on threads of its own, which a forked child does not have: its first call would hang. So a
child of a process that has used obstore starts a proxy (`fork_proxy`), another process that makes the same calls.
Importing obstore, or opening a store, starts no threads.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from capline.segment.objects.bucket import BucketStore, runs_here
from capline.segment.objects.fork_proxy import ForkProxy, ForwardingStore
from capline.support.override import override

if TYPE_CHECKING:
    from collections.abc import Mapping


class RemoteStore(ForwardingStore):
    """A bucket: called from this process, or by a proxy in a forked child. Arguments as in `open_objects`."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self._address = (url, dict(options))
        self._bucket = BucketStore(url, options)
        self._proxy: ForkProxy | None = None
        self.where = self._bucket.where

    @override
    def _call(self, verb: str, *arguments: object) -> Any:
        if runs_here():
            return getattr(self._bucket, verb)(*arguments)
        if self._proxy is None or self._proxy.owner != os.getpid() or not self._proxy.works:
            self.close()
            self._proxy = ForkProxy(*self._address)
        return getattr(self._proxy, verb)(*arguments)

    @override
    def close(self) -> None:
        """End the proxy, if there is one."""
        if self._proxy is not None:
            self._proxy.close()
            self._proxy = None
