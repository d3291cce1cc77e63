"""Run the benchmark of `fastcni bench`. It compares implementations of CNI, which the code calls sides: the Go plugins,
fastcni one-shot, fastcni warm, and the floor. The floor is the smallest possible cost: a launcher, and the kernel's
work.

In one run on one machine, the implementations take turns in random order. The benchmark makes network namespaces, and
removes these namespaces at its end.

    run.py      the run, part by part                 cases.py    the calls, and their number
    bench.py    the state that all parts share
    node.py     the namespaces and networks           calls.py    processes, one or many at once
    sides.py    the plugins and servers               floor.py    the kernel's own part; echo.py: the launcher's part
    churn.py    latency and rate                      density.py  latency by the number of pods
    idle.py     latency after a pause, and in turn with another program
    cost.py     processor time, number of processes   memory.py   the server's memory
    guard.py    detects a busy node, lists what the run changes; isolation.py: hides the node's files from the run
    peer.py     the Go plugins of the node            estimate.py, progress.py  the time that a run takes
    tables.py, plots.py, report.py                    the output
    verdict.py, web_page.py, web_plots.py, web_style.py, svg.py  the page, with the verdict in words
"""
