"""What a packed log must not be, though its checksum is right."""

from array import array

import pytest

from capline.model.errors import StoreDamagedError
from capline.store.local.log_bytes import pack_unit_log, read_plain, read_words

KEY = b"log"
VALUE = pack_unit_log(array("Q", [1, 2, 3]), KEY)


@pytest.mark.parametrize("place", [2, 3])
@pytest.mark.parametrize("bit", range(8))
def test_reserved_bytes_that_are_not_zero_are_another_form(place: int, bit: int) -> None:
    changed = bytearray(VALUE)
    changed[place] ^= 1 << bit
    # The checksum does not cover these bytes: they are looked at by themselves.
    assert read_plain(bytes(changed), KEY) is None
    with pytest.raises(StoreDamagedError, match="no such kind"):
        read_words(bytes(changed), KEY)


def test_a_right_value_is_read_both_ways() -> None:
    assert read_plain(VALUE, KEY) == array("Q", [1, 2, 3])
    assert read_words(VALUE, KEY) == (0, array("Q", [1, 2, 3]))
