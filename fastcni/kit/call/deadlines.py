"""The deadlines between a launcher and the server, in seconds; docs/server-waits.md has the table.

The launcher's deadlines are written into each plugin file. They must be longer than the server's: the server abandons a
request before its launcher gives up.
"""

UNREAD_S = 10                   # launcher: until the server has read a request, which it does immediately
ANSWER_S = 400                  # launcher: until the answer to a request that the server has read
QUICK_ANSWER_S = 30             # launcher: ANSWER_S of VERSION and STATUS, which change nothing
# Server: from reading a request to its end. A request waits at most 60 s in the queue, and at most 240 s for an IPAM
# plugin that is not fastcni's. Must be less than ANSWER_S.
REQUEST_S = 380
# Server: if its threads have not run for this time, the server was stopped. Launchers may have run one-shot in that
# time. Must be less than UNREAD_S.
STALL_S = 8
