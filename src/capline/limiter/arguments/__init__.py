"""What callers hand in: checked, in rows and columns, as records of logs; and the hash in place of a subject."""
