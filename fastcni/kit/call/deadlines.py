"""Define the deadlines between a launcher and the server, in seconds. docs/server-waits.md has the table.

The build writes the launcher's deadlines into each plugin file. They must be longer than the server's, so that the
server abandons a request before the launcher gives up.
"""

UNREAD_S = 10                   # launcher: limit until the server has read the request; usually immediately
ANSWER_S = 400                  # launcher: limit from the server's read to the answer
QUICK_ANSWER_S = 30             # launcher: replaces ANSWER_S for VERSION and STATUS, which change nothing
# Server: limit from reading a request to its end. A request waits at most 60 s in the queue, and at most 240 s for an
# IPAM plugin that is not fastcni's. Must be less than ANSWER_S.
REQUEST_S = 380
# Server: if no thread has run for this time, the server process was stopped. Launchers may have run one-shot plugins in
# that time. Must be less than UNREAD_S.
STALL_S = 8
