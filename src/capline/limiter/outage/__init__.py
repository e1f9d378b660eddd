"""What a decision is while the store cannot answer."""
