"""Make and install the plugin files of the CNI bin dir: a small ELF program followed by the plugins' code.

Programs in C:

    launcher.c     the ELF program: sends the request to the server, or executes Python
    python_core.c  a Python that has done a part of its start

In the plugin file's Python:

    bootstrap     finds the modules inside the plugin file, and answers a request
    one_shot      OneShotMode
    netavark      requests of netavark's plugin protocol

To pack a plugin file:

    pack          the bytes of a plugin file
    modules       collects the modules
    needs         finds the modules of each plugin
    closure       the modules of a plugin of another distribution
    parts         divides the modules into parts
    strip         removes annotations and source columns
    interpreters  the interpreters that a plugin file tries
    core          describes python_core.elf

To install plugin files:

    install       writes the plugin files
    uninstall     removes the plugin files
    replaced      keeps the replaced files
    identify      recognises a program in a plugin directory
    files         replaces several files together
    systemd       writes the systemd units
    systemd_dhcp  the units of the dhcp daemon
"""
