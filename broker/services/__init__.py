"""What a broker offers its clients: plain objects whose methods take and return protocol messages."""
