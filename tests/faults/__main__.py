"""`python -m faults [CAMPAIGN...]`: run campaigns, each on its own node, and print a table; status 1 on any failure.

    make test-faults                                     all campaigns
    make test-faults FAULTS="--seconds 25"               25 seconds a campaign
    make test-faults FAULTS="soak --seconds 28800"       a soak of eight hours
    make test-faults FAULTS="steps --seed 7 --only ptp"  repeat one campaign, with the seed that its output named
"""

import argparse
import importlib
import os
import signal
import sys
import time

from faults.report import MAX_SHOWN, Row, table

CAMPAIGNS = {                   # module: (seconds unless --seconds is given, description)
    "steps": (6 * 3600, "fail or kill each system call of each plugin's ADD, DEL and CHECK"),
    "kills": (300, "kill launchers, one-shot plugins and the server with SIGKILL, under load"),
    "adds": (900, "kill launchers of ADDs with SIGKILL, then DEL: no address remains allocated"),
    "mix": (300, "fastcni warm, one-shot and the Go plugins use one address directory at the same time"),
    "frozen": (180, "SIGSTOP the server before and while it works"),
    "storage": (120, "requests on a full or read-only disk, without inodes, with sparse and cut index files"),
    "flushes": (180, "flush nftables while pods are added and deleted"),
    "cluster": (300, "cluster-wide addresses on each store, with crashes, partitions and reboots in any order"),
    "restores": (300, "restore etcd from backups, and let it hang: no address has two live owners"),
    "damaged": (300, "damage records of addresses, and python_core.elf"),
    "foreign": (300, "other programs change iptables and nftables: pods keep their connections"),
    "elsewhere": (180, "requests and gc in other time and mount namespaces: living pods keep everything"),
    "dhcp": (120, "kill the dhcp daemon while it renews leases, and damage lease files"),
    "soak": (60 * float(os.environ.get("SOAK_MINUTES", "10")), "load, flushes, changed policies: memory does not grow"),
    "sanitized": (120, "the extension modules under ASan and UBSan, with mutated replies, messages and files"),
}


def main():
    parser = argparse.ArgumentParser(prog="python -m faults", formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="\n".join(f"{name:10} {text}" for name, (_, text) in CAMPAIGNS.items()))
    parser.add_argument("campaigns", nargs="*", metavar="CAMPAIGN", help=", ".join(CAMPAIGNS))
    parser.add_argument("--seconds", type=float, help="the duration of each campaign")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="repeat the choices of another run")
    parser.add_argument("--only", default="", help="in steps, try only the cases whose name contains this")
    parser.add_argument("--processes", type=int, default=2 * (os.cpu_count() or 1),
                        help="processes of steps [two for each processor]")
    parser.add_argument("--log", default=".lanes/faults.log", metavar="FILE", help="file of all failures [%(default)s]")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("needs root, to make network namespaces")
    if unknown := set(options.campaigns) - set(CAMPAIGNS):
        sys.exit(f"unknown campaign: {', '.join(sorted(unknown))}; the campaigns are {', '.join(CAMPAIGNS)}")
    # The handler raises an exception, so that the campaign removes its objects
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    os.environ["FASTCNI_SOCKET"] = ""
    print(f"seed {options.seed}", flush=True)
    os.makedirs(os.path.dirname(options.log) or ".", exist_ok=True)
    with open(options.log, "w") as log:
        return run(options, log)


def run(options, log):
    """Run the campaigns and print the table, also after Ctrl-C. Return the exit status."""
    rows, took, status = [], {}, 0
    for name in options.campaigns or CAMPAIGNS:
        row, started = Row(name, options.seconds or CAMPAIGNS[name][0], options.seed, log), time.monotonic()
        print(f"{name}: {CAMPAIGNS[name][1]}", flush=True)
        rows.append(row)
        try:
            importlib.import_module(f"faults.{name}").campaign(row, options)
        except KeyboardInterrupt:
            row.note("interrupted")
            status = 130
        except Exception as e:          # the other campaigns still run
            row.failed(f"the campaign failed: {type(e).__name__}: {e}")
        took[name] = time.monotonic() - started
        if status:
            break
    print(f"\n{table(rows, took)}")
    if any(len(found) > MAX_SHOWN for row in rows for found in (row.failures, row.residue)):
        print(f"\nall failures: {options.log}")
    return status or int(any(row.failures or row.residue for row in rows))


if __name__ == "__main__":
    sys.exit(main())
