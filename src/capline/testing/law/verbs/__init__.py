"""What each verb does beyond the rule: its input, ids, slots, charges, reservations, logs."""
