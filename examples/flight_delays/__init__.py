"""Compute the mean delay of flights per day, carrier and airport, in a pipeline of RaftMQ, Spark and a Python consumer."""
