"""Free ports of loopback, below the ephemeral range, so that no outgoing connection takes one.

A server of a Redis Cluster also has a bus, 10,000 above its port.
"""

import random
import socket
from pathlib import Path

from capline.model.errors import CaplineError

HOST = "127.0.0.1"
BUS = 10_000
_LOWEST, _USUAL_END = 10_000, 32_768
_TRIES = 10_000


def free_ports(count: int) -> list[int]:
    """So many ports that nobody listens on now, nor on the port `BUS` above; all different."""
    end = _first_outgoing()
    draw = random.SystemRandom()  # two runs that start together must not choose the same ones
    taken: set[int] = set()
    for _ in range(_TRIES):
        port = draw.randrange(_LOWEST, max(end - BUS, _LOWEST + 1000))
        if not {port, port + BUS} & taken and _is_free(port) and _is_free(port + BUS):
            taken |= {port, port + BUS}
            if len(taken) == 2 * count:
                return sorted(port for port in taken if port + BUS in taken)
    raise CaplineError(f"no {count} free ports on {HOST} between {_LOWEST} and {end}; stop what listens there")


def _first_outgoing() -> int:
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
        return int(text.split()[0])
    except (OSError, ValueError):
        return _USUAL_END


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
