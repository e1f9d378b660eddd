"""Sets of ids as roaring bitmaps, and what is computed from them."""
