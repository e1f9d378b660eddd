"""Building segments: rows out of CSV, Parquet and object stores become sets."""
