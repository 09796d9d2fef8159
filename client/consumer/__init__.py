"""Read records: fetch them ahead of the program and commit what it processed."""
