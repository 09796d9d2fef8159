"""Connect a Python process of Spark to clusters, and answer the questions of planning."""
