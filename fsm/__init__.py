"""Pure, deterministic state machines: the metadata group and the log partition, and what proposers check before them."""
