"""Tables in files, as segments and replays read them: rows of CSV as columns, and columns of times as instants.

times     one time as text
columns   columns of texts and times, by pyarrow where it is installed
csv_file  the columns of a CSV file, block by block
"""
