"""Make and install the plugin files of the CNI bin dir: a small ELF program followed by the plugins' code."""
