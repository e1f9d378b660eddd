"""From the names of a call to compiled rules: policies, overrides, segments, limits of the call, cached refusals."""
