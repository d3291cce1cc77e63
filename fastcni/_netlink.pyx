# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: binding=False, auto_pickle=False
"""Build netlink messages in a Batch, exchange them by send() and receive(), and decode them.

The layout of a message (include/uapi/linux/netlink.h); each part is padded to four bytes:

    nlmsghdr   len:u32  type:u16  flags:u16  seq:u32  pid:u32
    family header (ifinfomsg, nfgenmsg, ...), which the caller gives as bytes
    nlattr     len:u16  type:u16  payload
    nlattr     ...
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcpy, memset, strerror

from fastcni._abandoned cimport check
from fastcni._attributes cimport NLA_HDRLEN, Attributes, align4, nlattr, number, start, step
from fastcni._run_token cimport GONE, await_either, give, take

cdef extern from "<linux/netlink.h>" nogil:
    enum: NLA_F_NESTED, NLMSG_ERROR, NLMSG_DONE, NLMSG_NOOP, NLMSGERR_ATTR_MSG, NLMSGERR_ATTR_OFFS
    enum: NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP
    enum: NLM_F_CAPPED          # in an ACK: only the header of the request is repeated
    enum: NLM_F_ACK_TLVS        # in an ACK: extended acknowledgement attributes follow
    enum: NLM_F_DUMP_INTR       # in an answer to a dump: the table has changed during the dump
    struct nlmsghdr:
        uint32_t nlmsg_len
        uint16_t nlmsg_type
        uint16_t nlmsg_flags
        uint32_t nlmsg_seq
        uint32_t nlmsg_pid

cdef extern from "<sys/socket.h>" nogil:
    enum: MSG_DONTWAIT
    ssize_t c_send "send"(int fd, const void* data, size_t size, int flags)
    ssize_t recv(int fd, void* buffer, size_t size, int flags)

cdef enum:
    CAPACITY = 32768            # bytes in one Batch; callers send a longer list in two Batches
    USUAL = 512                 # the first size of a Batch's buffer, which then doubles up to CAPACITY
    DATAGRAM = 65536            # the kernel fills a datagram of a dump up to 32 KiB, so none is cut short
    DEPTH = 16                  # the most nested attributes that may be open at the same time
    HEADER = 16                 # sizeof(struct nlmsghdr)


class BatchFull(ValueError):
    """The message does not fit in the Batch, which now holds only the complete messages before it. Send the Batch, and
    begin the message again."""


cdef inline uint16_t swap16(uint16_t v) noexcept nogil:
    return <uint16_t>((v << 8) | (v >> 8))


cdef inline uint32_t swap32(uint32_t v) noexcept nogil:
    return ((v & 0xFF) << 24) | ((v & 0xFF00) << 8) | ((v >> 8) & 0xFF00) | (v >> 24)


@cython.final
cdef class Batch:
    """Requests that go to the kernel in one send.

    `asked` maps the sequence number of each request to the text for its error. The kernel answers the last request, and
    each earlier request that it rejects: see finish(). A batch with a dump has no other request. Each method that
    writes returns the batch, so that calls can be chained; finish() returns the bytes. The sequence numbers are `first`
    + 1 to `last`.
    """

    # grows, because clearing 32 KiB for each Batch would empty a processor's cache
    cdef uint8_t* buffer
    cdef Py_ssize_t size
    cdef Py_ssize_t used
    cdef Py_ssize_t message                 # where the open message begins, -1: no message is open
    cdef Py_ssize_t nests[DEPTH]
    cdef int depth
    cdef readonly uint32_t first, last
    cdef readonly dict asked
    cdef readonly bint answered             # whether the last request gets an answer instead of an ACK, see begin()

    def __cinit__(self, uint32_t first=0):
        self.first = self.last = first
        self.used = 0
        self.message = -1
        self.depth = 0
        self.asked = {}
        self.answered = False
        self.buffer = NULL
        self.size = 0

    def __dealloc__(self):
        free(self.buffer)

    cdef int drop(self, str why) except -1:
        """Drop the open message, and raise BatchFull."""
        if self.message >= 0:
            self.used = self.message
            self.message = -1
            self.depth = 0
            self.asked.pop(self.last, None)
        raise BatchFull(why)

    cdef uint8_t* reserve(self, Py_ssize_t size) except NULL:
        cdef Py_ssize_t padded = align4(size)
        cdef uint8_t* at
        if padded > CAPACITY - self.used:
            self.drop(f"{size} bytes more do not fit in a batch of {CAPACITY}")
        while padded > self.size - self.used:
            at = <uint8_t*>realloc(self.buffer, self.size * 2 or USUAL)
            if at == NULL:
                raise MemoryError()
            self.buffer, self.size = at, self.size * 2 or USUAL
        at = &self.buffer[self.used]
        self.used += padded
        if padded != size:
            memset(at + size, 0, padded - size)
        return at

    cdef inline int check_open(self) except -1:
        if self.message < 0:
            raise ValueError("no message is open: call begin() first")
        return 0

    cdef int attr(self, uint16_t kind, const void* data, Py_ssize_t size) except -1:
        cdef uint8_t* at
        cdef nlattr head
        self.check_open()
        if NLA_HDRLEN + size > 0xFFFF:
            self.drop(f"attribute {kind} of {size} bytes")
        head.nla_len = <uint16_t>(NLA_HDRLEN + size)
        head.nla_type = kind
        at = self.reserve(NLA_HDRLEN + size)
        memcpy(at, &head, NLA_HDRLEN)
        if size:
            memcpy(at + NLA_HDRLEN, data, size)
        return 0

    cdef int close(self) except -1:
        cdef uint32_t length
        if self.depth:
            raise ValueError(f"{self.depth} nested attributes still open")
        if self.message >= 0:
            length = <uint32_t>(self.used - self.message)
            memcpy(&self.buffer[self.message], &length, 4)
        return 0

    def begin(self, uint16_t kind, uint16_t flags, bytes header not None, what=None):
        """Open a message of type `kind`. begin() adds NLM_F_REQUEST to `flags`. `what` is the text for the kernel's
        error.

        With NLM_F_REQUEST as the only flag, the kernel answers with the requested object, and sends no ACK."""
        cdef uint8_t* at
        cdef nlmsghdr head
        cdef Py_ssize_t opened = self.used
        self.close()
        self.message = -1
        at = self.reserve(HEADER + PyBytes_GET_SIZE(header))
        self.message = opened
        self.last += 1
        head.nlmsg_len = 0                  # close() sets the length
        head.nlmsg_type = kind
        head.nlmsg_flags = flags | <uint16_t>NLM_F_REQUEST
        head.nlmsg_seq = self.last
        head.nlmsg_pid = 0
        memcpy(at, &head, HEADER)
        memcpy(at + HEADER, PyBytes_AS_STRING(header), PyBytes_GET_SIZE(header))
        # NLM_F_DUMP has two bits; NLM_F_EXCL is one of them
        if flags & (NLM_F_ACK | NLM_F_REQUEST) or flags & NLM_F_DUMP == NLM_F_DUMP:
            self.asked[self.last] = what
            self.answered = flags == NLM_F_REQUEST
        return self

    def u8(self, uint16_t kind, uint8_t value):
        self.attr(kind, &value, 1)
        return self

    def u16(self, uint16_t kind, uint16_t value):
        self.attr(kind, &value, 2)
        return self

    def u32(self, uint16_t kind, uint32_t value):
        self.attr(kind, &value, 4)
        return self

    def be16(self, uint16_t kind, uint16_t value):
        value = swap16(value)
        self.attr(kind, &value, 2)
        return self

    def be32(self, uint16_t kind, uint32_t value):
        value = swap32(value)
        self.attr(kind, &value, 4)
        return self

    def be64(self, uint16_t kind, uint64_t value):
        cdef uint32_t halves[2]
        halves[0] = swap32(<uint32_t>(value >> 32))
        halves[1] = swap32(<uint32_t>value)
        self.attr(kind, halves, 8)
        return self

    def text(self, uint16_t kind, str value not None):
        """Write an attribute with a string and its closing NUL, as the kernel's NLA_NUL_STRING requires.

        Raises ValueError for a NUL in the string: the kernel would stop reading there, and find another name.
        """
        cdef Py_ssize_t size
        cdef const char* data = PyUnicode_AsUTF8AndSize(value, &size)
        if memchr(data, 0, size) != NULL:
            raise ValueError(f"NUL character in {value!r}")
        self.attr(kind, data, size + 1)
        return self

    def raw(self, uint16_t kind, bytes value not None):
        self.attr(kind, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
        return self

    def header(self, bytes value not None):
        """Write a family header inside a nested attribute, as in VETH_INFO_PEER: bytes that are no attribute."""
        self.check_open()
        memcpy(self.reserve(PyBytes_GET_SIZE(value)), PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
        return self

    def nest(self, uint16_t kind):
        """Open a nested attribute; end() closes it and sets its length."""
        if self.depth == DEPTH:
            raise ValueError(f"more than {DEPTH} attributes nested")
        cdef Py_ssize_t at = self.used
        self.attr(kind | NLA_F_NESTED, NULL, 0)
        self.nests[self.depth] = at
        self.depth += 1
        return self

    def end(self):
        if not self.depth:
            raise ValueError("no nested attribute is open")
        self.depth -= 1
        cdef Py_ssize_t at = self.nests[self.depth]
        if self.used - at > 0xFFFF:
            self.drop(f"nested attribute of {self.used - at} bytes")
        cdef uint16_t length = <uint16_t>(self.used - at)
        memcpy(&self.buffer[at], &length, 2)
        return self

    def finish(self, uint32_t before=0):
        """Return the bytes to send. `before` is the last sequence number that the socket has used; finish() adds
        `before` to the batch's sequence numbers. Raises ValueError while a nested attribute is open.

        Only the last request asks for an ACK. The kernel handles the messages of a datagram in order, continues after
        an error, and reports errors also for requests without NLM_F_ACK (af_netlink.c, netlink_rcv_skb(); nfnetlink.c,
        nfnetlink_rcv_batch()). So the answer to the last request arrives last."""
        self.close()
        self.number_all(before)
        return PyBytes_FromStringAndSize(<char*>self.buffer, self.used)

    cdef int number_all(self, uint32_t more) except -1:
        """Add `more` to the sequence numbers, and remove NLM_F_ACK from all messages but the last one with this
        flag."""
        cdef nlmsghdr* acknowledged = NULL
        cdef nlmsghdr* here
        cdef Py_ssize_t at = 0
        while at < self.used:
            # aligned: malloc(3) aligns the buffer, and offsets are multiples of four
            here = <nlmsghdr*>&self.buffer[at]
            here.nlmsg_seq += more
            if here.nlmsg_flags & NLM_F_ACK:
                if acknowledged != NULL:
                    acknowledged.nlmsg_flags &= ~NLM_F_ACK
                acknowledged = here
            at += align4(here.nlmsg_len)
        if more:
            self.asked = {<uint32_t>sequence + more: what for sequence, what in self.asked.items()}
            self.first += more
            self.last += more
        return 0

    def clear(self):
        """Empty the batch for its next use."""
        self.used = 0
        self.message = -1
        self.depth = 0
        self.first = self.last = 0
        self.asked = {}
        self.answered = False
        return self

    def __bool__(self):
        return self.used > 0


def messages(bytes data not None):
    """Return the messages of a datagram: [(type, flags, sequence, port, payload)]. The payloads are copies.

    Raises ValueError for a length that does not fit the datagram.
    """
    return take_apart(<const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef list take_apart(const uint8_t* base, Py_ssize_t size):
    cdef Py_ssize_t at = 0
    cdef nlmsghdr head
    cdef list found = []
    while size - at >= HEADER:
        memcpy(&head, base + at, HEADER)
        if head.nlmsg_len < HEADER or head.nlmsg_len > size - at:
            raise ValueError(f"netlink message of {head.nlmsg_len} bytes at {at} in a datagram of {size}")
        payload = PyBytes_FromStringAndSize(<const char*>base + at + HEADER, head.nlmsg_len - HEADER)
        found.append((head.nlmsg_type, head.nlmsg_flags, head.nlmsg_seq, head.nlmsg_pid, payload))
        at += align4(head.nlmsg_len)
    if at < size:
        raise ValueError(f"{size - at} stray bytes behind the last netlink message")
    return found


def attributes(bytes data not None, Py_ssize_t offset=0):
    """Return the attributes from `offset` on as {type: payload}, without the flags of the types. If a type is repeated,
    its last payload is returned.

    Raises ValueError for a length that does not fit, and for an offset after the end, because the header is then cut
    short.
    """
    return dict(attribute_list(data, offset))


def attribute_list(bytes data not None, Py_ssize_t offset=0):
    """Return the attributes from `offset` on as [(type, payload)] in order, for lists that repeat a type."""
    cdef Attributes it
    cdef list found = []
    start(&it, <const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), offset)
    while step(&it):
        found.append((it.kind, PyBytes_FromStringAndSize(it.text, it.length)))
    return found


def u32(bytes data not None):
    """Return the number in four bytes, or in one byte; 0 for b""."""
    cdef Attributes it
    it.text, it.length = PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)
    return number(&it)


def read_ack(uint16_t kind, uint16_t flags, bytes payload not None):
    """Return an NLMSG_ERROR or NLMSG_DONE message as (errno, kernel's text, offset of the offending attribute).

    errno is 0 for success; the text is "" if the kernel gave none (netlink(7), NETLINK_EXT_ACK).
    Raises ValueError for a message cut short.
    """
    cdef int32_t code
    cdef uint32_t length
    cdef Py_ssize_t at = 4
    cdef Py_ssize_t size = PyBytes_GET_SIZE(payload)
    cdef const uint8_t* base = <const uint8_t*>PyBytes_AS_STRING(payload)
    if kind == NLMSG_ERROR:
        if size < 4 + HEADER:
            raise ValueError(f"netlink error message of {size} bytes")
    elif size < 4:                          # NLMSG_DONE of an old kernel has no code
        return 0, "", 0
    memcpy(&code, base, 4)
    if not flags & NLM_F_ACK_TLVS:
        return -<int64_t>code, "", 0
    if kind == NLMSG_ERROR:                 # unlike NLMSG_DONE, NLMSG_ERROR repeats the request
        memcpy(&length, base + 4, 4)
        at += HEADER if flags & NLM_F_CAPPED else align4(length)
    found = attributes(payload, at)
    text = found.get(NLMSGERR_ATTR_MSG, b"").rstrip(b"\0").decode("utf-8", "replace")
    offset = int.from_bytes(found.get(NLMSGERR_ATTR_OFFS, b""), "little")
    return -<int64_t>code, text, offset


def sort_replies(list found not None, dict asked not None, list replies not None, uint32_t port=0,
                 uint32_t answered=0):
    """Sort the messages() of a datagram. An ACK without an error removes its request from `asked`. An answer is
    appended to `replies` as (type, payload), and removes the request number `answered` from `asked`. Return every other
    message: errors, answers of an interrupted dump, messages whose sequence number is not in `asked`, and messages to
    another port than `port` (0: the port is unknown)."""
    cdef list rest = []
    cdef int32_t code
    for each in found:
        kind, flags, sequence, receiver, payload = each
        if sequence not in asked or (port and <uint32_t>receiver != port) or <uint16_t>flags & NLM_F_DUMP_INTR:
            rest.append(each)
        elif <uint16_t>kind != NLMSG_ERROR and <uint16_t>kind != NLMSG_DONE:
            if <uint16_t>kind != NLMSG_NOOP:
                replies.append((kind, payload))
                if <uint32_t>sequence == answered:
                    del asked[sequence]
        else:
            code = 0
            memcpy(&code, PyBytes_AS_STRING(payload), min(PyBytes_GET_SIZE(payload), 4))
            if code == 0 and PyBytes_GET_SIZE(payload) >= (4 + HEADER if <uint16_t>kind == NLMSG_ERROR else 0):
                del asked[sequence]
            else:
                rest.append(each)
    return rest


def send(int fd, bytes data not None):
    """Send a datagram, and return after the kernel has handled its requests. Raises OSError, Abandoned."""
    cdef const char* at = PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef int failed = EINTR
    while failed == EINTR:
        check()
        with nogil:
            give()
            failed = 0 if c_send(fd, at, size, 0) >= 0 else errno
            take()
        PyErr_CheckSignals()
    if failed:
        raise OSError(failed, strerror(failed).decode())


def receive(int fd, int milliseconds=-1, show=None, int caller=-1):
    """Return the messages() of the next datagram. Return None if no datagram arrives within `milliseconds` (-1: no
    limit), or if the other end of the connection `caller` closes first.

    receive() calls show("<", bytes) with the datagram. Raises OSError, with ENOBUFS if the kernel has dropped messages.
    """
    cdef int come
    # On the stack, because show() and the garbage collector let other threads run
    cdef uint8_t datagram[DATAGRAM]
    cdef ssize_t size = recv(fd, datagram, DATAGRAM, MSG_DONTWAIT)
    while size < 0:
        if errno != EAGAIN and errno != EINTR:
            PyErr_SetFromErrno(OSError)
        if errno == EAGAIN:
            if milliseconds == 0:
                return None
            with nogil:
                come = await_either(fd, caller, milliseconds)
            PyErr_CheckSignals()
            if come == 0 or come == GONE:
                return None
        size = recv(fd, datagram, DATAGRAM, MSG_DONTWAIT)
    if show is not None:
        show("<", PyBytes_FromStringAndSize(<char*>datagram, size))
    return take_apart(datagram, size)
