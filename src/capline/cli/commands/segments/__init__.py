"""`capline segments …`: makes snapshots of segments, reads them and publishes them."""
