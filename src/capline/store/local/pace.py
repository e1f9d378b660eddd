"""How many logs to check for each new subject, so that what is stale goes and what lives costs nothing.

Where newcomers replace each other, a quarter of what is checked is stale at a pace of 4: so no more than twice the live
logs are kept. A store whose logs all live is checked seldom.
"""

GRACE = 0.5
"""Windows that a log is kept past its widest: a clock that jumps ahead for a moment must not erase a history."""
LEAST, MOST = 1.25, 8.0
"""At the least more than one: else new keys at the end of the table would keep the checks there."""
MOST_ROWS = 32_768


class Pace:
    """`fresh` counts the new subjects since the last check."""

    __slots__ = ("_rows_each", "fresh")
    every = 64
    """After so many new subjects some logs are checked in turn, and the stale ones removed."""

    def __init__(self) -> None:
        self.fresh = 0
        self._rows_each = LEAST

    def rows(self) -> int:
        """How many logs to check for the new subjects; their count begins again."""
        rows = min(int(self.fresh * self._rows_each), MOST_ROWS)
        self.fresh = 0
        return rows

    def checked(self, rows: int, stale: int) -> None:
        """So many were checked, and so many of them removed."""
        if 4 * stale > rows:
            self._rows_each = min(2 * self._rows_each, MOST)
        elif 8 * stale < rows:
            self._rows_each = max(self._rows_each / 2, LEAST)
