"""The decisions of the last hour or so, kept so that other limits can be tried on them: `record:` in the settings."""
