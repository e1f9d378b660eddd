"""What is asked over HTTP: a verb is one function with its path, its form and its answer."""
