"""What commands print: two consoles, answers, reports, progress."""
