"""How fast Spark reads and writes RaftMQ. Each module runs by itself."""
