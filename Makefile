# make setup            virtual environment in .venv, build in place
# make demo             the server, two pods on a bridge, times beside the Go plugins, the self-test (root)
# make demo-nodes       two "nodes" with cluster-wide addresses, on a store that is a file (root)
# make check            the fast tests
# make lint             ruff, cython-lint and mypy
# make test             all tests in eight processes (WORKERS=0: in one); without root some are skipped with the reason
# make test-vm          the tests for other kernel options, in a VM (ONLY="tests/unit/plugins/test_x.py")
# make test-toolchains  what needs clang (the datapath ebpf), the launcher for aarch64, plots, the fast tests on other Pythons
# make test-arm64       README's install and tests on Debian's arm64 kernel, emulated: hours; before a release (root)
# make test-runtimes    containers of containerd, CRI and podman on a node of their own (root; installs these)
# make test-cluster     cluster IPAM, dhcp and the agent with real servers: etcd and others (as root it installs these)
# make test-observability  what operators look at: Prometheus, a terminal, a browser (as root it installs these)
# make screenshots      the pictures of docs, by a test of test-observability
# make test-packages    README's install, the Debian package, the Kubernetes image; the switch from the Go plugins (root)
# make test-faults      campaigns: steps kills adds mix frozen storage flushes cluster restores damaged foreign
#                       elsewhere dhcp soak sanitized; over an hour
#                       (FAULTS="--seconds 60": a minute each; FAULTS=kills: one of them; docs/reliability-tests.md)
# make test-policy      attacks on network policies, and random clusters against an oracle; 20 minutes
#                       (POLICY="--seconds 60 --seed 1": a minute each, with these choices; docs/reliability-tests.md)
# make test-mutants     changes of the code that no test notices (root; MUTANTS="--seconds 600 --only agent/policy";
#                       docs/reliability-mutants.md)
# make tests-of         the tests that run a file (FILE=fastcni/spec/version.py)
# make bench            figures and benchmarks/report (root; forty minutes, with BENCH=--quick a few)
# make simulate         one real agent, and 100, 1,000 and 5,000 simulated nodes on etcd: what grows, and how (root)
#                       (SIMULATE="--quick --json FILE": 50 and 200 nodes in less than 40 s; docs/scale.md)
# make wheels           the source archive, and a tested wheel for each Python (PYTHONS=python3.11: for one)
# make deb              the Debian packages, in dist
# make release          all files of a release in dist, with components and checksums; the same bytes each time
# make man              the manual pages, in build/man
# make docs             docs as a site with search and the library's reference, in build/docs; a broken link is an error
# make clean            remove all that was built
.POSIX:
.PHONY: setup demo demo-nodes test test-toolchains test-vm test-arm64 test-runtimes test-cluster test-observability \
	screenshots test-packages test-faults test-policy test-mutants tests-of simulate wheels deb release man docs check bench \
	lint clean

PYTHON = python3
VENV = .venv
BIN = $(VENV)/bin
WORKERS = 8
PYTHONS = python3.11 python3.12 python3.13 python3.14
BUILT = $(VENV)/.built-by-make
INSTALLED = $(VENV)/.installed-by-make
BUILT_FROM = pyproject.toml setup.py fastcni/*.p[xy][dxi] fastcni/launcher/*.[ch] fastcni/kernel/bpf/*.c

setup: $(BUILT)

$(BUILT): $(BUILT_FROM)
	@sh tests/setup-build.sh "$(PYTHON)"
	test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	@touch $@ $(INSTALLED)

# fastcni alone, without the tools of its tests
$(INSTALLED): $(BUILT_FROM)
	@sh tests/setup-build.sh "$(PYTHON)"
	@sh tests/setup-install.sh "$(PYTHON)" $(VENV)
	@touch $@

demo: $(INSTALLED)
	@sh tests/setup-peer.sh ip ping nft
	@FASTCNI="$$PWD/$(BIN)/fastcni" sh examples/demo.sh

demo-nodes: $(INSTALLED)
	@sh tests/setup-peer.sh ip ping
	@FASTCNI="$$PWD/$(BIN)/fastcni" sh examples/two-nodes.sh

test: setup
	@sh tests/setup-peer.sh
# Bytecode of tests is kept in any case, and one process writes it: else each process rewrites the asserts of 330 files.
	@ls tests/__pycache__/conftest.*-pytest-*.pyc > /dev/null 2>&1 || \
		PYTHONDONTWRITEBYTECODE= LANE=host $(BIN)/python -m pytest --collect-only -qq > /dev/null
	PYTHONDONTWRITEBYTECODE= LANE=host $(BIN)/python -m pytest $(RERUNS) -n $(WORKERS) --dist worksteal --benchmark-disable

test-toolchains: setup
	@sh tests/setup-peer.sh
	@sh tests/setup-peer.sh aarch64-linux-gnu-gcc qemu-aarch64-static clang
	@$(BIN)/python -c 'import sys; from fastcni.kernel.bpf.redirect_programs import PROGRAMS; sys.exit(not PROGRAMS)' || \
		{ touch fastcni/kernel/bpf/redirect.bpf.c && $(MAKE) setup; }
	@sh tests/toolchains.sh $(BIN)/python

test-vm: setup
	@sh tests/setup-peer.sh
	@sh tests/vm/fetch.sh $(BIN)/python
	@sh tests/vm/boot.sh $(ONLY)

test-arm64:
	@sh tests/setup-peer.sh qemu-system-aarch64 debootstrap cpio depmod
	@sh tests/arm64.sh $(ONLY)

test-runtimes: setup
	@sh tests/setup-peer.sh bridge iptables nft ip containerd runc podman busybox debootstrap
	@$(BIN)/python -c 'import grpc_tools' 2> /dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,test-runtimes]'
	LANE=runtimes $(BIN)/python -m pytest $(RERUNS) tests/runtimes

test-cluster: setup
	@sh tests/setup-peer.sh etcd etcdctl openssl ip ping dnsmasq kea-dhcp4 bird vtysh faketime
	@$(BIN)/python -c 'import kmock' 2> /dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,test-kubernetes]'
	LANE=cluster $(BIN)/python -m pytest $(RERUNS) -n 2 --dist worksteal tests/cluster

test-observability: setup
	@sh tests/setup-peer.sh
	@sh tests/setup-peer.sh prometheus promtool tmux chromium
	@$(BIN)/python -c 'import opentelemetry.exporter.otlp.proto.http' 2> /dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,otel]'
	LANE=observability $(BIN)/python -m pytest $(RERUNS) -n 2 --dist worksteal tests/observability

screenshots: setup
	@sh tests/setup-peer.sh prometheus promtool tmux chromium
	SCREENSHOTS="$$PWD/docs" $(BIN)/python -m pytest -q tests/observability/test_screenshots.py

test-packages: setup
	@sh tests/setup-peer.sh
	@sh tests/setup-peer.sh debootstrap dpkg-buildpackage lintian podman runc patchelf shellcheck
	@$(BIN)/python -c 'import kubernetes_validate' 2> /dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,test-packages]'
	LANE=packages $(BIN)/python -m pytest $(RERUNS) tests/packages

test-faults: setup
	@sh tests/setup-peer.sh
	@sh tests/setup-peer.sh etcd
	PYTHONPATH=tests $(BIN)/python -m faults $(FAULTS)

test-policy: setup
	@sh tests/setup-peer.sh iptables nft ip conntrack
	@$(BIN)/python -c 'import kmock' 2> /dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,test-kubernetes]'
	PYTHONPATH=tests $(BIN)/python -m policy_attacks $(POLICY)

simulate: setup
	@sh tests/setup-peer.sh etcd ip
	@PYTHONPATH=benchmarks $(BIN)/python -m simulate $(SIMULATE)

test-mutants: setup
	@sh tests/setup-peer.sh
	@$(BIN)/python -c 'import coverage, cosmic_ray' 2> /dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,test-mutants]'
	PYTHONPATH=tests $(BIN)/python -m mutants $(MUTANTS)

tests-of: setup
	@sh tests/setup-peer.sh
	@$(BIN)/python -c 'import coverage' 2> /dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,test-mutants]'
	PYTHONPATH=tests $(BIN)/python -m mutants.covering $(FILE)

wheels: setup
	@sh tests/setup-peer.sh clang
	sh wheels/build.sh $(BIN)/python $(PYTHONS)

deb:
	sh packaging/build-deb.sh

release: setup
	@sh tests/setup-peer.sh clang
	sh packaging/release.sh $(BIN)/python $(PYTHONS)

man: setup
	$(BIN)/python packaging/man.py build/man

docs: setup
	@$(BIN)/python -c 'import furo, myst_parser' 2> /dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,docs]'
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going docs build/docs
	@echo "open build/docs/index.html"

check: setup
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not needs" tests/unit/kernel tests/unit/kit tests/unit/launcher \
		tests/unit/plugins tests/unit/spec tests/unit/test_*.py tests/unit/server/test_request_queue.py \
		tests/unit/server/test_protocol.py tests/project/test_layers*.py --ignore tests/unit/kit/ipam/cluster \
		--ignore tests/unit/launcher/test_deadlines.py --ignore tests/unit/kit/ipam/test_store_refusals.py

bench: setup
	@sh tests/setup-peer.sh bridge iptables nft ip etcd ovs-vswitchd
	@$(BIN)/python -c 'import matplotlib' 2> /dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,plots]'
	$(BIN)/fastcni bench --report benchmarks/report $(BENCH)
	$(BIN)/python benchmarks/bench_cluster_ipam.py
	$(BIN)/python -m pytest --benchmark-only benchmarks
	$(BIN)/python -m pytest -s benchmarks/bench_ovs.py

lint: setup
	$(BIN)/ruff check .
	PATH="$$PWD/$(BIN):$$PATH" cython-lint fastcni
	$(BIN)/mypy

clean:
	rm -rf build dist wheelhouse fastcni.egg-info .pytest_cache .ruff_cache .hypothesis .benchmarks .lanes .toolchains .packages .arm64 .covering
	rm -f fastcni/*.so fastcni/*.c fastcni/launcher/*.elf fastcni/launcher/*.so fastcni/launcher/python_core.LICENSE $(BUILT) $(INSTALLED)
	find fastcni tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
