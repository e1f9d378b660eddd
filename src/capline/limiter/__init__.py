"""The limiter: policy look-up, checks of what callers hand in, and the choice for an outage, over any store."""
