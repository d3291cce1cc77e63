/* Two programs of cls_bpf at the host end of a pod's veth pair. They redirect packets of a flow between two pods of
 * the node from one pod's link to the other's, past the host's stack.
 *
 *     pod A                      host                       pod B
 *     eth0 ---- from_pod ---- routing, nftables ---- to_pod ---- eth0      the first packet, and others from time to time
 *     eth0 ---- from_pod ----------------------------------------- eth0    the packets that follow
 *
 * The host decides about a flow: from_pod marks the first packet with a hash of its addresses and ports (tc_index),
 * and passes the packet to the host. If the packet arrives at to_pod, and the hash still fits, the host has neither
 * dropped nor translated the packet. Then to_pod adds the flow to `flows`. Both ends must be in `pods` with the
 * links at which the programs see the packet, so a flow has no forged addresses.
 *
 *     TCP  SYN and SYN-ACK pass through the host; from_pod redirects all further packets. For VERDICT_NS, from_pod also
 *          redirects other connections to the same port between the two pods, from their SYN on.
 *     UDP  from_pod redirects the packets of a direction for FRESH_NS. Then one packet passes through the host again,
 *          so that conntrack keeps the flow.
 *
 * Packets also pass through the host if the map is full, and if they are fragments or have IP options, extension
 * headers, VLAN tags or a TTL of 1. The structs and numbers below are the kernel's interface (linux/bpf.h), without
 * its headers.
 */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct __sk_buff {
    u32 len, pkt_type, mark, queue_mapping, protocol, vlan_present, vlan_tci, vlan_proto, priority, ingress_ifindex,
        ifindex, tc_index, cb[5], hash, tc_classid, data, data_end;
};

static void *(*look_up)(void *map, const void *key) = (void *)1;
static long (*update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*delete)(void *map, const void *key) = (void *)3;
static long (*redirect_peer)(u32 ifindex, u64 flags) = (void *)155;         /* Linux 5.10 */
static u64 (*now_ns)(void) = (void *)160;                                   /* ktime_get_coarse_ns, Linux 5.11 */

#define SECTION(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define SWAP16(number) __builtin_bswap16(number)
#define VERDICT_NS 1000000000ULL
#define FRESH_NS 10000000000ULL         /* less than conntrack's shortest timeout of UDP, 30 s */

enum { PASS = -1, ETHERNET = 14, IPV4 = 20, IPV6 = 40, UDP_BYTES = 8, TCP_FLAGS = 13 };
enum { TCP = 6, UDP = 17, FIN = 1, SYN = 2, RST = 4, ACK = 16 };
enum { RESTRICTED = 1 };                /* a bit of pod.flags */

/* kit/datapath/maps.py reads and writes the same structs. IPv4 addresses are IPv4-mapped, ::ffff:10.1.0.2. */
struct address { u32 words[4]; };
struct pod { u32 ifindex, flags, mtu, macs[3]; };                           /* macs: the pod's, then the host end's */
struct key { struct address ends[2]; u32 ports, protocol; };                /* ends[0] is the smaller address */
struct side { u64 seen, packets, bytes; u32 ifindex, closed; };             /* about the packets that this end sends */
struct flow { struct side sides[2]; u32 first, unused; };                   /* first: the end that sent the first packet */

struct map { int unused; };
struct map pods SECTION("maps");
struct map flows SECTION("maps");

struct packet { struct address source, destination; u32 ports, protocol, flags, reversed; };

INLINE int read(struct __sk_buff *skb, struct packet *packet)
{
    u8 *ip = (u8 *)(long)skb->data + ETHERNET, *end = (u8 *)(long)skb->data_end, *transport;
    if (skb->vlan_present)
        return 0;
    if (skb->protocol == SWAP16(0x0800)) {
        transport = ip + IPV4;
        if (transport + UDP_BYTES > end || ip[0] != 0x45 || *(u16 *)(ip + 6) & SWAP16(0x3fff) || ip[8] <= 1)
            return 0;
        packet->protocol = ip[9];
        packet->source = (struct address){{0, 0, 0xffff0000, *(u32 *)(ip + 12)}};
        packet->destination = (struct address){{0, 0, 0xffff0000, *(u32 *)(ip + 16)}};
    } else if (skb->protocol == SWAP16(0x86dd)) {
        transport = ip + IPV6;
        if (transport + UDP_BYTES > end || ip[7] <= 1)
            return 0;
        packet->protocol = ip[6];
        packet->source = *(struct address *)(ip + 8);
        packet->destination = *(struct address *)(ip + 24);
    } else
        return 0;
    packet->flags = 0;
    if (packet->protocol == TCP) {
        if (transport + TCP_FLAGS + 1 > end)
            return 0;
        packet->flags = transport[TCP_FLAGS];
    } else if (packet->protocol != UDP)
        return 0;
    packet->ports = *(u32 *)transport;
    return 1;
}

/* Make the key of a packet's flow, which is the same for both directions. */
INLINE void make_key(struct packet *packet, struct key *key)
{
    packet->reversed = 0;
#pragma unroll
    for (int word = 3; word >= 0; word--)
        if (packet->source.words[word] != packet->destination.words[word]) {
            packet->reversed = packet->source.words[word] > packet->destination.words[word];
            break;
        }
    key->ends[0] = packet->reversed ? packet->destination : packet->source;
    key->ends[1] = packet->reversed ? packet->source : packet->destination;
    key->ports = packet->reversed ? packet->ports << 16 | packet->ports >> 16 : packet->ports;
    key->protocol = packet->protocol;
}

/* Return `ports` without the port of ends[side], for the key of all connections to one port. */
INLINE u32 any_port(u32 ports, u32 side)
{
    return side ? ports & 0xffff : ports & 0xffff0000;
}

/* Return a hash of the addresses and ports: 16 bits, never 0. */
INLINE u32 hash(const struct packet *packet)
{
    u32 mixed = packet->protocol ^ packet->ports;
#pragma unroll
    for (int word = 0; word < 4; word++) {
        mixed = (mixed ^ packet->source.words[word]) * 0x9e3779b1;
        mixed = ((mixed << 13 | mixed >> 19) ^ packet->destination.words[word]) * 0x85ebca6b;
    }
    mixed = (mixed ^ mixed >> 16) & 0xffff;
    return mixed ? mixed : 1;
}

/* Return whether the flow was between other links, because one of its addresses now belongs to another pod. */
INLINE int differs(const struct flow *flow, u32 side, u32 from, u32 to)
{
    return flow->sides[side].ifindex != from || flow->sides[!side].ifindex != to;
}

INLINE void insert(struct key *key, u32 side, u32 from, u32 to, int both)
{
    u64 now = now_ns();
    struct flow flow = {.first = side};
    flow.sides[0].ifindex = side ? to : from;
    flow.sides[1].ifindex = side ? from : to;
    flow.sides[0].seen = both || !side ? now : 0;
    flow.sides[1].seen = both || side ? now : 0;
    update(&flows, key, &flow, 0);
}

INLINE int redirect(struct __sk_buff *skb, struct packet *packet, struct key *key, struct flow *flow, struct pod *to)
{
    u32 side = packet->reversed & 1;
    u8 *frame = (u8 *)(long)skb->data, *ip = frame + ETHERNET;
    if (ip + IPV4 > (u8 *)(long)skb->data_end)
        return PASS;
    if (skb->protocol == SWAP16(0x0800)) {
        u32 sum = *(u16 *)(ip + 10) + SWAP16(0x0100);           /* RFC 1624: the TTL decreases by 1 */
        *(u16 *)(ip + 10) = sum + (sum >= 0xffff);
        ip[8]--;
    } else
        ip[7]--;
    for (int word = 0; word < 3; word++)
        ((u32 *)frame)[word] = to->macs[word];
    flow->sides[side].packets++;
    flow->sides[side].bytes += skb->len;
    if (packet->flags & RST || (flow->sides[0].closed && flow->sides[1].closed && !(packet->flags & FIN)))
        delete(&flows, key);
    else if (packet->flags & FIN) {
        flow->sides[side].closed = 1;
        flow->sides[side].seen = now_ns();
    }
    return redirect_peer(to->ifindex, 0);
}

SECTION("tc/from_pod") int from_pod(struct __sk_buff *skb)
{
    struct packet packet;
    struct key key;
    skb->tc_index = 0;                  /* the pod may have set tc_index */
    if (!read(skb, &packet))
        return PASS;
    struct pod *to = look_up(&pods, &packet.destination);
    if (!to)
        return PASS;
    make_key(&packet, &key);
    u32 side = packet.reversed & 1;
    if ((packet.flags & (SYN | ACK)) == SYN) {
        struct pod *from = look_up(&pods, &packet.source);
        if (!from || from->ifindex != skb->ifindex || (from->flags | to->flags) & RESTRICTED)
            return PASS;
        u32 ports = key.ports;
        key.ports = any_port(ports, side);
        struct flow *verdict = look_up(&flows, &key);
        if (!verdict || differs(verdict, side, skb->ifindex, to->ifindex) ||
            now_ns() - verdict->sides[side].seen > VERDICT_NS) {
            skb->tc_index = hash(&packet);
            return PASS;
        }
        key.ports = ports;
        insert(&key, side, skb->ifindex, to->ifindex, 1);
    }
    struct flow *flow = look_up(&flows, &key);
    if (flow && !differs(flow, side, skb->ifindex, to->ifindex)) {
        if (packet.protocol == TCP ? flow->sides[0].seen && flow->sides[1].seen
                                   : now_ns() - flow->sides[side].seen < FRESH_NS)
            return redirect(skb, &packet, &key, flow, to);
    }
    if (packet.protocol == UDP || packet.flags & SYN)
        skb->tc_index = hash(&packet);
    return PASS;
}

SECTION("tc/to_pod") int to_pod(struct __sk_buff *skb)
{
    struct packet packet;
    struct key key;
    u32 expected = skb->tc_index;
    if (!expected)
        return PASS;
    skb->tc_index = 0;
    if (!read(skb, &packet) || hash(&packet) != expected)
        return PASS;
    struct pod *to = look_up(&pods, &packet.destination), *from = look_up(&pods, &packet.source);
    if (!to || !from || to->ifindex != skb->ifindex || from->ifindex != skb->ingress_ifindex ||
        (from->flags | to->flags) & RESTRICTED || from->mtu > to->mtu)
        return PASS;
    make_key(&packet, &key);
    u32 side = packet.reversed & 1;
    if ((packet.flags & (SYN | ACK)) == SYN) {
        insert(&key, side, from->ifindex, to->ifindex, 0);
        return PASS;
    }
    struct flow *flow = look_up(&flows, &key);
    int known = flow && !differs(flow, side, from->ifindex, to->ifindex);
    if (known)
        flow->sides[side].seen = now_ns();
    if (packet.protocol == UDP) {
        if (!known)
            insert(&key, side, from->ifindex, to->ifindex, 0);
    } else if (known) {
        key.ports = any_port(key.ports, !side);
        insert(&key, !side, to->ifindex, from->ifindex, 0);
    }
    return PASS;
}
