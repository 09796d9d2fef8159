"""Put messages into queue topics, lease and settle them."""
