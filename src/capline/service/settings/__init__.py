"""What `capline serve` is told: values, the files that they name, and the last good version of each."""
