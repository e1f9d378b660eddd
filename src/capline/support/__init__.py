"""What any folder may use and no caller sees: lazy imports, private files, text of instants and of HTTP statuses."""
