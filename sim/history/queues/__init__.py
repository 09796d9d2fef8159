"""Histories of queue partitions: the operations of their clients, and the promises that were broken.

| anomaly | file |
|---|---|
| `lost`: an acknowledged message is neither finished nor left | `anomalies/lost.py` |
| `invented`: a message that nobody sent, that was refused, or that is at another sequence | `anomalies/invented.py` |
| `duplicated`: a message that was sent once has two sequences | `anomalies/duplicated.py` |
| `early`: a lease before the due time, by queue time | `anomalies/early.py` |
| `expired`: a lease after the message's time to live, by queue time | `anomalies/expired.py` |
| `leased_twice`: a lease begins while another one of the same message is valid | `anomalies/leased_twice.py` |
| `settled_twice`: a settlement succeeds with a token that was settled, or whose lease was followed by another | `anomalies/settled_twice.py` |
| `resurrected`: a finished message is leased again | `anomalies/resurrected.py` |
| `lost_update`: a change overwrites another one that it has not seen | `anomalies/lost_update.py` |
| `misordered`: a message of a key is leased before an earlier one of the key is finished | `anomalies/misordered.py` |
| `stuck`: a message is left at the end that nobody can lease | `anomalies/stuck.py` |
"""
