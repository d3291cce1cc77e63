"""Put one packet into a link of the node, as if a host outside had sent it.

A BPF program of four instructions hands the frame to the link's ingress: bpf_clone_redirect(frame, link, ingress). The
program is attached to no hook: it runs once, by BPF_PROG_TEST_RUN, and the kernel removes it when its descriptor is
closed. See bpf(2), bpf-helpers(7).
"""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Callable

from fastcni.kernel.bpf import objects
from fastcni.kernel.sockets.packet_sockets import checksum
from fastcni.why.probe import CONNECTED, REFUSED, SILENT
from fastcni.why.spy import BACK, LEFT, Spy

BPF_F_INGRESS, CLONE_REDIRECT = 1, 13
MOV64_IMM, CALL, EXIT = 0xB7, 0x85, 0x95
SYN, RST, ACK = 0x02, 0x04, 0x10
TCP, UDP = 6, 17
HOST_MAC = bytes.fromhex("02fc00000001")        # the MAC of the imitated sender
FIRST_PORT, PORTS = 49152, 1 << 14              # the ephemeral ports of RFC 6335


def instruction(code: int, register: int = 0, value: int = 0) -> bytes:
    """Return struct bpf_insn   code:u8  dst_reg:4 src_reg:4  off:s16  imm:s32"""
    low = register if sys.byteorder == "little" else register << 4
    return struct.pack("=BBhi", code, low, 0, value)


def into(index: int, frame: bytes) -> None:
    """Hand an Ethernet frame to the ingress of a link of the calling thread's namespace. Raises OSError."""
    code = b"".join((instruction(MOV64_IMM, 2, index), instruction(MOV64_IMM, 3, BPF_F_INGRESS),
                     instruction(CALL, 0, CLONE_REDIRECT), instruction(EXIT)))
    try:
        fd = objects.load(code, (), {})
        try:
            objects.run(fd, frame)
        finally:
            objects.close(fd)
    except OSError as e:
        raise OSError(e.errno, f"imitate a packet from outside by BPF: {e.strerror}") from e


def packet(protocol: int, source: bytes, destination: bytes, segment: bytes, at: int) -> bytes:
    """Return an IP packet with a TCP or UDP segment. at: the offset of the checksum in the segment, which packet()
    fills in."""
    pseudo = source + destination + (struct.pack("!BBH", 0, protocol, len(segment)) if len(source) == 4
                                     else struct.pack("!II", len(segment), protocol))
    total = checksum(pseudo + segment) or 0xFFFF
    segment = segment[:at] + total.to_bytes(2, "big") + segment[at + 2:]
    if len(source) == 16:
        return struct.pack("!IHBB", 6 << 28, len(segment), protocol, 64) + source + destination + segment
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(segment), 0, 0x4000, 64, protocol, 0) + source + destination
    return header[:10] + checksum(header).to_bytes(2, "big") + header[12:] + segment


class Injected:
    """The first packet of a connection from an outside address, with the methods of a Probe. index, mac: those
    of the link at which the packet arrives.

    The trace also shows the pod's answer. The last chain in the trace's own table drops the answer, so the answer does
    not leave the node.
    """

    def __init__(self, index: int, mac: bytes, source: bytes, destination: bytes, port: int, *, udp: bool) -> None:
        self.index, self.mac, self.ends, self.to, self.udp = index, mac, (source, destination), port, udp
        random = os.urandom(6)
        self.port = FIRST_PORT + int.from_bytes(random[:2], "big") % PORTS
        self.sequence = int.from_bytes(random[2:], "big")
        self.outcome, self.errno, self.source = SILENT, 0, ""
        self.spy: Spy | None = None

    def send(self) -> None:
        """Send the first packet. Raises OSError."""
        self._send(SYN, self.sequence)

    def again(self) -> None:
        self.send()

    def _send(self, flags: int, sequence: int) -> None:
        if self.udp:
            protocol, segment, at = UDP, struct.pack("!HHHH", self.port, self.to, 8, 0), 6
        else:
            protocol, at = TCP, 16
            segment = struct.pack("!HHIIBBHHH", self.port, self.to, sequence, 0, 5 << 4, flags, 64240, 0, 0)
        ethertype = b"\x08\x00" if len(self.ends[0]) == 4 else b"\x86\xdd"
        into(self.index, self.mac + HOST_MAC + ethertype + packet(protocol, *self.ends, segment, at))

    def wait(self, seconds: float, done: Callable[[], bool] = lambda: False) -> str:
        """Wait until the trace shows that an answer reached the node's last chains. Return the outcome. done() ends the
        wait."""
        deadline = time.monotonic() + seconds
        while self.outcome == SILENT and self.spy is not None and not done():
            self.spy.read()
            if self.spy.progress >= BACK + LEFT:
                flags = max((it.event.transport[13] for it in self.spy.seen
                             if it.reply and len(it.event.transport) > 13), default=0)
                self.outcome = REFUSED if flags & RST and not self.udp else CONNECTED
            elif time.monotonic() >= deadline:
                break
            else:
                time.sleep(0.005)
        return self.outcome

    def close(self) -> None:
        """Reset the connection in the target, because the target would otherwise repeat its answer. Raises OSError."""
        if not self.udp and self.outcome != REFUSED:
            self._send(RST, (self.sequence + 1) & 0xFFFFFFFF)
