"""Run the benchmark of `fastcni bench`. It compares implementations of CNI, which the code calls sides: the Go plugins,
fastcni one-shot, fastcni warm, and the floor. The floor is the smallest possible cost: a launcher, and the kernel's
work.

In one run on one machine, the implementations take turns in random order. The benchmark makes network namespaces, and
removes these namespaces at its end.

The run:

    run        the run, part by part
    bench      Bench: the state that all parts share
    cases      the calls and their number
    node       the namespaces and networks
    sides      the implementations: plugins and servers
    peer       finds the Go plugins of the node
    calls      runs plugins as processes, one or many at once
    floor      the kernel's part of the floor
    echo       the launcher's part of the floor
    guard      detects a busy node, and lists what the run changes
    isolation  hides the node's files from the run
    estimate   the time that a run takes
    progress   shows the remaining time

Parts:

    churn      latency, one call at a time, and rate, many calls at once
    density    latency by the number of pods
    idle       latency after a pause, and after a call of another implementation
    beside     latency while another program changes iptables
    cost       processor time, and the number of processes
    forks      counts processes and threads, for cost
    memory     the server's memory

Output:

    report     writes samples, tables and plots
    tables     tables as text
    plots      plots as SVG files
    verdict    the result in words
    web_page   the HTML page
    web_plots  plots of the page
    web_style  CSS of the page
    svg        draws the plots of the page
"""
