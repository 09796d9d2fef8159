"""Flights → mean delay per day, carrier and airport → a picture: a pipeline of RaftMQ, Spark and a Python consumer."""
