"""The benchmark that proves the product: the Go plugins, fastcni one-shot and warm, and the kernel's own floor.

All sides run on one machine in one go, in turn and shuffled, in network namespaces made for it and removed after it.

    run.py      the whole run, part by part       cases.py    what is called, and how often
    node.py     the namespaces                    calls.py    one process, or so many at once
    sides.py    who is called                     floor.py    what the kernel itself takes, echo.py the launcher
    churn.py    one at a time, and many           density.py  with so many pods there already
    cost.py     processors, processes, memory     tables.py, plots.py, report.py     what is shown of it
"""
