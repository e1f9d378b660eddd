"""The metrics of the service: what is counted, and what a scrape reads."""
