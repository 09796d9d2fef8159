"""Write one record and read it back. This is the first program of the README.

It expects `raftmq dev` in another terminal, and a topic: ``raftmq topic create greetings``.

Prints::

    offset 0 holds b'hello'
"""

from raftmq.sync import Consumer, Producer

servers = "localhost:9400"
with Producer(bootstrap_servers=servers) as producer:
    written = producer.send_and_wait("greetings", b"hello")
with Consumer("greetings", bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
    print("offset", written.offset, "holds", next(iter(consumer)).value)
