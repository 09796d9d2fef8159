"""Make batches of several writers visible as a whole: the rules, and their requests to the cluster."""
