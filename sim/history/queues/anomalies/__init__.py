"""The anomalies of histories of queues, one file for each."""
