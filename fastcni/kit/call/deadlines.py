"""The deadlines between a launcher and the server, in seconds; docs/server-waits.md has the table.

The launcher's deadlines are written into each plugin file. They must be longer than the server's: the server abandons a
request before its launcher gives up.
"""

UNREAD_S = 10                   # launcher: until the server has read a request, which it does at once
ANSWER_S = 400                  # launcher: until the answer to a request that the server has read
QUICK_ANSWER_S = 30             # launcher: the same for VERSION and STATUS, which change nothing
# Server: from reading a request to its end. At most 60 s of it are in the queue, 240 s in an IPAM plugin that is not
# fastcni's. Less than the launcher waits after UNREAD_S.
REQUEST_S = 380
# Server: if its threads have not run for this time, it was stopped. Meanwhile launchers may have gone one-shot. Less
# than UNREAD_S.
STALL_S = 8
