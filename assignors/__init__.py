"""Pure assignors of partitions to the members of a consumer group. None yet: they come with consumer groups."""
