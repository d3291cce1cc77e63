"""How long a launcher waits for the server, and how long the server works on a request; docs/server.md has the table.

The launcher's deadlines are written into each plugin file. They must be longer than the server's: the server abandons a
request before its launcher gives up.
"""

UNREAD_SECONDS = 10             # launcher: for the server to read a request, which a live one does at once
ANSWER_SECONDS = 400            # launcher: for the answer to a request that was read
QUICK_ANSWER_SECONDS = 30       # launcher: the same for VERSION and STATUS, which change nothing
# Server: from reading a request to its end, 60 s of it in the queue, and 240 s for an IPAM plugin of others; less than
# the launcher waits after UNREAD_SECONDS.
REQUEST_SECONDS = 380
# Server: without a sign of life for so long it was stopped, and launchers may have passed it by; less than
# UNREAD_SECONDS.
STALL_SECONDS = 8
