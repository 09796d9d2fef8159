"""The producer and the worker of docker-compose.yml."""
