"""The console: pages on the admin listener, each of which asks the service's own verbs as whoever is signed in."""
