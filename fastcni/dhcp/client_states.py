"""Define the states of a DHCP client and the transitions between them: figure 5 of RFC 2131, with the probe of 4.4.1.

    INIT -> SELECTING -> REQUESTING -> PROBING -> BOUND -> RENEWING -> REBINDING -> INIT
                                                   ^-----------'----------'
    REBOOTING (the attachment had a lease before) -> PROBING, or INIT

Each row of the table says which state follows an event, and which method of client.Client carries out the transition.
The client ignores an event without a row, such as a late or repeated answer.
"""

from __future__ import annotations

INIT, SELECTING, REQUESTING, PROBING = "init", "selecting", "requesting", "probing"
BOUND, RENEWING, REBINDING, REBOOTING = "bound", "renewing", "rebinding", "rebooting"
STATES = (INIT, SELECTING, REQUESTING, PROBING, BOUND, RENEWING, REBINDING, REBOOTING)

# Events: answers of the server, an answer to the ARP probe, and the expiry of timers
OFFER, ACK, NAK, CONFLICT = "offer", "ack", "nak", "conflict"
DUE, SILENCE, T2, EXPIRED = "due", "silence", "t2", "expired"

TABLE = {
    (INIT, DUE): (SELECTING, "discover"),
    (SELECTING, DUE): (SELECTING, "discover_again"),
    (SELECTING, OFFER): (REQUESTING, "request"),
    (REQUESTING, DUE): (REQUESTING, "request_again"),
    (REQUESTING, SILENCE): (SELECTING, "discover"),
    (REQUESTING, NAK): (INIT, "refused"),
    (REQUESTING, ACK): (PROBING, "probe"),
    (REBOOTING, DUE): (REBOOTING, "request_again"),
    (REBOOTING, SILENCE): (SELECTING, "discover"),
    (REBOOTING, NAK): (INIT, "refused"),
    (REBOOTING, ACK): (PROBING, "probe"),
    (PROBING, DUE): (PROBING, "probe_again"),
    (PROBING, SILENCE): (BOUND, "bind"),
    (PROBING, CONFLICT): (INIT, "decline"),
    (BOUND, DUE): (RENEWING, "renew"),
    (RENEWING, DUE): (RENEWING, "renew_again"),
    (RENEWING, ACK): (BOUND, "extend"),
    (RENEWING, NAK): (INIT, "lose"),
    (RENEWING, T2): (REBINDING, "renew"),
    (REBINDING, DUE): (REBINDING, "renew_again"),
    (REBINDING, ACK): (BOUND, "extend"),
    (REBINDING, NAK): (INIT, "lose"),
    (REBINDING, EXPIRED): (INIT, "lose"),
    (RENEWING, EXPIRED): (INIT, "lose"),
    (BOUND, EXPIRED): (INIT, "lose"),
}
HOLDING = (BOUND, RENEWING, REBINDING)
