"""Work on late flights through a queue topic, kill a broker and a worker on the way, and verify every job."""
