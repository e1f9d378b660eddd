"""The slot of a call or a task: taken, waited for, given back; whatever the client is."""
