"""The shell: node, engine, transport, services and everything else that touches the world."""
