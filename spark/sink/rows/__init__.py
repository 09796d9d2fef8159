"""Sort the rows of a task, cut them into batches and send them, and find the rows that earlier runs wrote."""
