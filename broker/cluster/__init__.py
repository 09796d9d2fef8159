"""Make a node part of a cluster: join it, host the replicas that metadata wants here, and keep them healthy."""
