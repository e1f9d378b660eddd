"""What `capline serve` is told: values, their files, the last good of each, what its workers keep for each other."""
