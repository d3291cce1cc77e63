"""Real DHCP servers in a namespace of the tests: dnsmasq, whose leases last two minutes or more, and Kea."""

import contextlib
import json
import os
import signal
import subprocess

from unit.dhcp.server import SERVER

from fastcni.testing.witnesses import eventually

LIMIT_S = 30


class Program:
    """`with Dnsmasq(...) as server:` runs a server in the network's namespace. In the block, kill() and start() stop
    and start it.

    directory: the directory of the server's files. ready: the text that the server prints when it is ready.
    """

    ready = ""

    def __init__(self, network, directory):
        self.network, self.directory, self.process = network, str(directory), None
        self.output = f"{directory}/{type(self).__name__.lower()}.log"

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.kill()

    def start(self):
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(["ip", "netns", "exec", self.network.host, *self.command()], stdout=output,
                                            stderr=output, stdin=subprocess.DEVNULL, env={**os.environ, **self.env()})
        assert eventually(lambda: self.process.poll() is not None or self.ready in self.log())
        assert self.process.poll() is None, self.log()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(LIMIT_S)

    def env(self):
        return {}

    def log(self):
        with open(self.output, encoding="utf-8", errors="replace") as output:
            return output.read()

    def wait_for(self, text, count=1):
        assert eventually(lambda: self.log().count(text) >= count)


class Dnsmasq(Program):
    """dnsmasq, which keeps its leases over a restart. start() reads these attributes. pool: the beginning of the pool's
    addresses, such as "10.77.3". t1, t2: the renewal and rebinding time of leases in seconds; 0: dnsmasq's default."""

    ready = "DHCP, IP range"

    def __init__(self, network, directory):
        super().__init__(network, directory)
        self.pool, self.t1, self.t2 = "10.77.2", 0, 0

    def command(self):
        times = [f"--dhcp-option={code},{seconds}" for code, seconds in (("option:T1", self.t1), ("option:T2", self.t2))
                 if seconds]
        return ["dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--log-facility=-", "--no-ping",
                "--log-dhcp", "--dhcp-authoritative", "--interface=br0", "--user=root",
                f"--dhcp-range={self.pool}.10,{self.pool}.250,255.255.0.0,120", *times, f"--dhcp-option=3,{SERVER}",
                f"--dhcp-option=6,{SERVER}", "--dhcp-option=15,example.org", "--dhcp-option=119,a.example,b.example",
                f"--dhcp-option=121,192.168.9.0/24,10.77.0.9,0.0.0.0/0,{SERVER}", "--dhcp-option=26,1400",
                f"--dhcp-leasefile={self.directory}/dnsmasq.leases", f"--pid-file={self.directory}/dnsmasq.pid"]

    def leases(self):
        """Return the addresses that dnsmasq has leased."""
        with contextlib.suppress(FileNotFoundError), open(f"{self.directory}/dnsmasq.leases", encoding="utf-8") as file:
            return [line.split()[2] for line in file]
        return []


class Kea(Program):
    """Kea, which forgets all leases when it restarts. start() reads these attributes. seconds, t1, t2: the lease,
    renewal and rebinding time in seconds. subnet, pool: the beginning of their addresses, such as "10.77" and
    "10.77.3". router: the gateway's address."""

    ready = "DHCP4_STARTED"

    def __init__(self, network, directory, seconds):
        super().__init__(network, directory)
        self.seconds, self.t1, self.t2 = seconds, seconds // 2, seconds * 3 // 4
        self.subnet, self.pool, self.router = "10.77", "10.77.3", SERVER

    def env(self):
        return {"KEA_PIDFILE_DIR": self.directory, "KEA_LOCKFILE_DIR": self.directory}

    def command(self):
        path = f"{self.directory}/kea.json"
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"Dhcp4": {
                "interfaces-config": {"interfaces": ["br0"], "dhcp-socket-type": "raw"},
                "lease-database": {"type": "memfile", "persist": False},
                "authoritative": True, "valid-lifetime": self.seconds, "renew-timer": self.t1, "rebind-timer": self.t2,
                "subnet4": [{"id": 1, "subnet": f"{self.subnet}.0.0/16",
                             "pools": [{"pool": f"{self.pool}.10 - {self.pool}.250"}],
                             "option-data": [{"name": "routers", "data": self.router}]}],
                "loggers": [{"name": "kea-dhcp4", "severity": "DEBUG", "debuglevel": 50,
                             "output_options": [{"output": "stdout"}]}]}}, file)
        return ["kea-dhcp4", "-c", path]
