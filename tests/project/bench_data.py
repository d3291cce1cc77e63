"""Invented samples of a run of `fastcni bench`."""

ONE_TO_100 = [float(n) for n in range(1, 101)]


def series(go, one_shot, warm, floor):
    """Return {series: {call: samples}}. ADD and DEL of a series have the same samples. An argument is one series'
    samples."""
    of = {"Go": go, "one-shot": one_shot, "warm": warm, "floor": floor, "launcher": [0.5], "requests": [0.25]}
    return {side: {"ADD": samples, "DEL": samples} for side, samples in of.items()}


def many(pods, *seconds):
    return {call: {"seconds": list(seconds), "ms": [1.0] * pods * len(seconds)} for call in ("ADD", "DEL")}


def complete_run():
    """Return the data of a run that measured all parts and implementations."""
    one = series(ONE_TO_100, [20.2] * 9, [5.1] * 9, [1.02] * 9)
    alone = {"VERSION": {"seconds": [0.5], "ms": [1.0] * 1000}}
    cost = {"cpu": 0.02, "machine": 0.04, "processes": 2.0, "threads": 9.5}
    dense = {level: series([10.0] * 4, [12.0] * 4, [2.0, 3.0, 4.0], [1.0] * 4) for level in ("0", "1000")}
    without_go = {level: {side: found[side] for side in ("warm", "floor")} for level, found in dense.items()}
    return {
        "machine": {"kernel": "Linux 6", "Go plugins": "bridge v1"}, "command": "fastcni bench", "plan": {},
        "sides": ["Go", "one-shot", "warm", "floor"], "notes": ["one\nnote"],
        "latency": {"bridge": one, "host-local-60000": one},
        "idle": {"bridge": {"in a row": one, "each second": series([30.0], [40.0], [10.2], [2.04]),
                            "in turn with another": {}}},
        "rate": {"harness-alone": {"8": {"floor": alone}},
                 "bridge": {"8": {"Go": many(100, 1.0, 2.0, 4.0), "warm": many(100, 0.2)}}},
        "cost": {"ptp": {"Go": cost, "warm": {**cost, "cpu": 0.002, "processes": None}}},
        "density": {"ptp": dense, "bridge": dense, "bridge-no-ipv6": without_go, "bridge-unflooded": without_go},
        "beside": {"firewall": {"iptables-nft, no changes": one,
                                "iptables-nft, ten changes a second": series([60.0], [40.4], [7.65], [1.02])}},
        "memory": [{"when": "at its start", "kB": 30720, "threads": 34, "fds": 40}],
    }
