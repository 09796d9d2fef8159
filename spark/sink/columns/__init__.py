"""Find the columns of a write, and convert their cells, for the kind of the topic."""
