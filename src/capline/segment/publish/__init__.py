"""Publishing snapshots, and following what is published."""
