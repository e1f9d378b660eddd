"""Published limiters, in our own words, each beside capline on the case that breaks it: `python -m proof.articles`.

published.py  the algorithms, as articles about the field have them; on a real Redis where the articles use one
cases.py      the case of each: what is asked, what the limit allows, and what came of it
page.py       the table, as text and as docs/explanation/articles.md
"""
