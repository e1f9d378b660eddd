"""Environment variables of envoyproxy/ratelimit that mean the same here, by the key of the settings.

Their names are short and common (`SHADOW_MODE`), so they are read only where Envoy's files are named by `--envoy`.
docs/howto/envoy.md lists them.
"""

import re
from collections.abc import Mapping

_FLAGS = {
    "MERGE_DOMAIN_CONFIG": "grpc.merge_domains",
    "SHADOW_MODE": "grpc.shadow_mode",
    "QUOTA_MODE": "grpc.quota_mode",
    "RESPONSE_DYNAMIC_METADATA": "grpc.dynamic_metadata",
    "LIMIT_RESPONSE_HEADERS_ENABLED": "grpc.response_headers",
}
_WORDS = {
    "NEAR_LIMIT_RATIO": "grpc.near_limit_ratio",
    "LIMIT_LIMIT_HEADER": "grpc.limit_header",
    "LIMIT_REMAINING_HEADER": "grpc.remaining_header",
    "LIMIT_RESET_HEADER": "grpc.reset_header",
}
_SPANS = {
    "GRPC_MAX_CONNECTION_AGE": "grpc.max_connection_age",
    "GRPC_MAX_CONNECTION_AGE_GRACE": "grpc.max_connection_age_grace",
}
_TLS = {
    "GRPC_SERVER_TLS_CERT": "grpc.tls.certificate",
    "GRPC_SERVER_TLS_KEY": "grpc.tls.key",
    "GRPC_CLIENT_TLS_CACERT": "grpc.tls.client_ca",
}
_BOOLEANS = {"1": "true", "t": "true", "0": "false", "f": "false"}
"""Go takes these too."""

_SPAN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|h|m|s)", re.ASCII)
_UNITS_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def upstream_settings(environment: Mapping[str, str]) -> dict[str, tuple[str, str | tuple[str, ...]]]:
    """By key: the variable's name and its value, in the words of the settings. What is wrong there is found later."""
    found: dict[str, tuple[str, str | tuple[str, ...]]] = {}
    said = {name: value for name, value in environment.items() if value}
    for name, value in said.items():
        if name in _FLAGS:
            found[_FLAGS[name]] = name, _BOOLEANS.get(value.lower(), value)
        elif name in _WORDS:
            found[_WORDS[name]] = name, value
        elif name in _SPANS and (seconds := _seconds(value)) != "0":  # to Go 0 is no bound
            found[_SPANS[name]] = name, seconds
    use_tls = said.get("GRPC_SERVER_USE_TLS", "").lower()
    if _BOOLEANS.get(use_tls, use_tls) == "true":
        found.update({key: (name, said[name]) for name, key in _TLS.items() if name in said})
    if "GRPC_UDS" in said:
        found["grpc.listen"] = "GRPC_UDS", f"unix:{said['GRPC_UDS']}"
    elif "GRPC_HOST" in said or "GRPC_PORT" in said:
        host = said.get("GRPC_HOST", "127.0.0.1")
        named = " and ".join(name for name in ("GRPC_HOST", "GRPC_PORT") if name in said)
        found["grpc.listen"] = named, f"{f'[{host}]' if ':' in host else host}:{said.get('GRPC_PORT', '8082')}"
    return found


def _seconds(text: str) -> str:
    """The seconds of a duration as Go writes it, `1h30m`; any other text as it is."""
    parts = _SPAN.findall(text)
    if "".join(number + unit for number, unit in parts) != text:
        return text
    return f"{sum(float(number) * _UNITS_S[unit] for number, unit in parts):.9f}".rstrip("0").rstrip(".")
