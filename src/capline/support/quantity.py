"""Spans and sizes as people say them."""

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def span(seconds: float | None) -> str:
    """Seconds in one or two units, as people say them: `3 h 20 min`; None is never."""
    if seconds is None:
        return "never"
    if seconds < 0.9995:  # noqa: PLR2004 - three digits of it are no thousand
        return f"{1000 * seconds:.3g} ms"
    whole = round(seconds)
    for unit, name, below, below_name in (
        (_DAY, "d", _HOUR, "h"),
        (_HOUR, "h", _MINUTE, "min"),
        (_MINUTE, "min", 1, "s"),
    ):
        if whole >= unit:
            rest = whole % unit // below
            return f"{whole // unit} {name}{f' {rest} {below_name}' if rest else ''}"
    return f"{whole} s"


def size(number_of_bytes: float | None) -> str:
    """Bytes in the largest unit of which there is one; None is what nobody said."""
    if (value := number_of_bytes) is None:
        return "\N{EN DASH}"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:  # noqa: PLR2004 - as above
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"
