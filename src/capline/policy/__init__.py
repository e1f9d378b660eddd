"""Policies as people write them: a YAML file, validated whole, and a watch that follows its changes."""
