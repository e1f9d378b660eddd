"""What is typed: how commands are declared, the options they share, subjects, standard input."""
