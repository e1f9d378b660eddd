"""Many attempts at once: batches, receipts, looked-up segments, random histories, threads and processes."""
