# Read netlink attributes, which lie in memory one after another (linux/netlink.h). Extension modules that read messages
# cimport these inline functions, so this module is never loaded.
#
#     nlattr     len:u16  type:u16  payload, padded to four bytes
#     nlattr     ...
#
# The payload of a nested attribute consists of attributes, see inside().

from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy

cdef extern from "<linux/netlink.h>" nogil:
    enum: NLA_HDRLEN, NLA_TYPE_MASK
    struct nlattr:
        uint16_t nla_len
        uint16_t nla_type


cdef inline Py_ssize_t align4(Py_ssize_t n) noexcept nogil:
    return (n + 3) & ~<Py_ssize_t>3


cdef struct Attributes:
    # The attributes are `size` bytes at `base`. kind (without flags), text and length are of the attribute that step()
    # has read last.
    const uint8_t* base
    Py_ssize_t size, at
    uint16_t kind
    const char* text
    Py_ssize_t length


cdef inline int start(Attributes* it, const uint8_t* base, Py_ssize_t size, Py_ssize_t offset) except -1:
    if not 0 <= offset <= size:
        raise ValueError(f"netlink attributes at {offset} in {size} bytes")
    it.base, it.size, it.at = base, size, offset
    return 0


cdef inline int inside(Attributes* it, Attributes* around) except -1:
    """Start with the attributes in the payload of another attribute; NULL: without attributes."""
    if around == NULL:
        return start(it, NULL, 0, 0)
    return start(it, <const uint8_t*>around.text, around.length, 0)


cdef inline bint step(Attributes* it) except -1:
    """Go to the next attribute. Return False after the last attribute."""
    cdef nlattr head
    cdef Py_ssize_t left = it.size - it.at
    if left < <Py_ssize_t>NLA_HDRLEN:
        if left > 0:
            raise ValueError(f"{left} stray bytes behind the last netlink attribute")
        return False
    memcpy(&head, it.base + it.at, sizeof(head))
    if head.nla_len < <Py_ssize_t>NLA_HDRLEN or head.nla_len > left:
        raise ValueError(f"netlink attribute of {head.nla_len} bytes at {it.at} in {it.size}")
    it.kind, it.length = head.nla_type & <uint16_t>NLA_TYPE_MASK, head.nla_len - <Py_ssize_t>NLA_HDRLEN
    it.text = <const char*>it.base + it.at + NLA_HDRLEN
    it.at += align4(head.nla_len)
    return True


cdef inline uint32_t number(const Attributes* it) noexcept:
    """Return the payload as a number of four bytes, or of one byte; 0 if the payload is empty."""
    cdef uint32_t found = 0
    if it.length == 1:
        return <uint8_t>it.text[0]
    memcpy(&found, it.text, min(it.length, 4))
    return found
