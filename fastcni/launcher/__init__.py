"""The executables of the CNI bin dir: one small ELF program, the plugin code behind it, and the installer."""
