"""capline's own code with one mistake at a time, each of which a named test has to catch.

python -m proof.mutants.of_code                     every mutant, each with its own test: a few seconds each
python -m proof.mutants.of_code --only joint_tie    one; may be given several times
python -m proof.mutants.of_code --list              names, files and reasons

A mutant is a copy of src in a temporary directory with one text replaced; the working tree is never written to. Before
that, all the named tests run on an unchanged copy and must pass. Exit code 0: all were caught; 1: one survived, or its
test could not be run; 2: bad input.

mutant.py    what a mutant is, and the copy that has it
trials.py    a test run on a copy: caught, survived, or no verdict
window.py, local.py, redis.py, segments.py, callers.py    the mutants, by the folders that they are in
"""
