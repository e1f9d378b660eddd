"""capline's own code with one mistake at a time, which its tests must catch.

python -m proof.mutants.of_code                        those by hand, then the operators all over the judged
python -m proof.mutants.of_code --sample 10            only so many of the operators', drawn by a seed that is printed
python -m proof.mutants.of_code --file web/answer.py   the operators' in this file, wherever it is: to look at its tests
python -m proof.mutants.of_code --only 'a reply'       those by hand whose reason has this text

A mutant is a copy of src in a temporary directory with one text replaced; the working tree is never written to. Before
that, the tests run on an unchanged copy and must pass. Exit code 0: all were caught, but for the judged; 1: another
one survived, or one that was judged did not, or a test could not be run; 2: bad input.

operators.py    the standard mistakes (comparison, arithmetic, boolean, constant, branch, return, deleted statement)
targets.py      where they are made, and which tests have to catch them
judged.txt      those that survive, each with its reason
by_hand.py      mistakes that no operator makes, each with the test to catch it
trials.py       a test run on a copy: caught, survived, or no verdict
"""
