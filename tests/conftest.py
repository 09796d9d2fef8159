"""What every test runs under."""

from hypothesis import settings

# A property is about what is computed, not about how fast a busy machine computes it.
settings.register_profile("raftmq", deadline=None)
settings.load_profile("raftmq")
