"""In segment: sets, snapshots, what was verified, what is published."""

from proof.mutants.of_code.mutant import Mutant

__all__ = ["MUTANTS"]

MUTANTS = (
    Mutant(
        "stray_number",
        "segment/snapshot/load.py",
        "numbers.page(len(ids) - 1, 1)",
        "numbers.page(len(ids), 1)",
        "a number that no text has is in a snapshot, and asking for its text fails later",
        "tests/unit/segment/test_numbers.py::test_a_number_that_no_text_has_is_refused_from_the_first_one_on",
    ),
    Mutant(
        "stamp_vouches_for_another_manifest",
        "segment/snapshot/verified.py",
        "if (stamp.manifest_sha256, stamp.layout, stamp.files) != (_digest(data), _layout(manifest), there):",
        "if (stamp.layout, stamp.files) != (_layout(manifest), there):",
        "a manifest that was changed after it was verified is believed",
        "tests/unit/segment/test_stamp.py::test_a_manifest_that_was_changed_after_it_was_stamped_is_not_believed",
    ),
    Mutant(
        "stamp_ignores_the_time",
        "segment/snapshot/verified.py",
        "status.st_size, status.st_mtime_ns)",
        "status.st_size, 0)",
        "a file that was written to after it was verified is believed",
        "tests/unit/segment/test_stamp.py::test_changed_files_are_verified_again",
    ),
    Mutant(
        "files_are_not_hashed",
        "segment/snapshot/load.py",
        "if hashlib.sha256(data).hexdigest() != entry.sha256:",
        "if False:",
        "a damaged file of a segment is used",
        "tests/unit/segment/test_snapshot.py::TestDisk::test_every_flipped_byte_is_found",
    ),
    Mutant(
        "codes_too_narrow",
        "segment/sets/codes.py",
        "dtype if len(sets) < np.iinfo(dtype).max else np.uint16",
        "dtype",
        "with 255 segments ids are told to be in another one",
        "tests/unit/segment/test_snapshot.py::TestAnswers::test_codes_of_many_segments_are_wide_enough",
    ),
    Mutant(
        "difference_the_wrong_way",
        "segment/sets/expression.py",
        "            right, left = stack.pop(), stack.pop()",
        "            left, right = stack.pop(), stack.pop()",
        "a - b is b - a",
        "tests/unit/segment/test_expression.py::test_what_it_means",
    ),
    Mutant(
        "range_without_its_end",
        "segment/sets/idset.py",
        "        if first <= last:\n            bits.add(last)",
        "",
        "the last id of a range is in no segment",
        "tests/unit/segment/test_idset.py::test_algebra_makes_new_sets",
    ),
    Mutant(
        "pointer_without_its_seal",
        "segment/publish/pointer.py",
        "if header.format != FORMAT or not is_sealed(data):",
        "if header.format != FORMAT:",
        "a torn pointer of a publication is followed",
        "tests/unit/segment/test_pointer.py::test_cut_short_at_every_length",
    ),
)
