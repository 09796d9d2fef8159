"""Commands about the brokers that hold partitions: draining, balancing, moving, and the number of replicas."""
