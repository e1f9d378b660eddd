"""`capline doctor`: looks at this installation, the store and the files; an issue report begins with what it prints."""
