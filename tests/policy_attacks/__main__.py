"""`python -m policy_attacks [PART...]`: attack policies by real packets, and print a table; status 1 on any failure.

    make test-policy                                            all parts, some 20 minutes
    make test-policy POLICY="--seconds 60"                      60 seconds a part
    make test-policy POLICY="differential --seed 7 --cluster 3" repeat one cluster that the output named
    make test-policy POLICY="attacks --only broadcast"          the attacks with "broadcast" in their name
"""

import argparse
import importlib
import os
import signal
import sys
import time

from faults.report import Row, table

PARTS = {                       # module: (seconds unless --seconds is given, description)
    "attacks": (600, "root in a pod attacks policies, on bridge and ptp, by IPv4 and IPv6"),
    "differential": (900, "random clusters and events: real packets are compared with an oracle"),
}


def main():
    parser = argparse.ArgumentParser(prog="python -m policy_attacks",
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="\n".join(f"{name:13} {text}" for name, (_, text) in PARTS.items()))
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--seconds", type=float, help="the duration of each part")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="repeat the choices of another run")
    parser.add_argument("--cluster", type=int, help="in differential, run only this cluster")
    parser.add_argument("--only", default="", help="in attacks, run only those whose name contains this")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("needs root, to make network namespaces")
    if unknown := set(options.parts) - set(PARTS):
        sys.exit(f"unknown part: {', '.join(sorted(unknown))}; the parts are {', '.join(PARTS)}")
    # The handler raises an exception, so that the part removes its objects
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    os.environ["FASTCNI_SOCKET"] = ""
    print(f"seed {options.seed}", flush=True)
    rows, took = [], {}
    for name in options.parts or PARTS:
        row, started = Row(name, options.seconds or PARTS[name][0], options.seed), time.monotonic()
        print(f"{name}: {PARTS[name][1]}", flush=True)
        rows.append(row)
        importlib.import_module(f"policy_attacks.{name}").campaign(row, options)
        took[name] = time.monotonic() - started
    print(f"\n{table(rows, took)}")
    return int(any(row.failures or row.residue for row in rows))


if __name__ == "__main__":
    sys.exit(main())
