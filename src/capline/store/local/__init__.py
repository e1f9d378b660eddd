"""Stores on this machine: memory and LMDB. `base` has every verb once; a store adds where its logs live."""
