"""The embedded store on a file in which one bit has flipped, anywhere: no wrong answer that nobody can find.

python -m proof.flips               2,000 flips, and a control without checksums, which has to fail
python -m proof.flips --flips 200   fewer

A flip is made in a copy of a file in which every subject is at its limit. Then a process of its own checks the file
(`capline store check`) and asks for every subject. What comes of it:

noticed    an error of capline's, for one subject or at opening
crashed    the process was ended by LMDB, loudly
harmless   every answer as before
wrong      somebody was let in, and no error said so

A flip in a value is never wrong and never a crash: its checksum covers it. Elsewhere in LMDB's pages a flip may be
either, and then the check must have found it.

regions.py   what stands where in the file: values, keys, the structure of LMDB's pages, free pages
trials.py    the file, one flip, the process that asks
"""
