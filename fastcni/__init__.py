"""fastcni: container networking (CNI) plugins, runtime library and command line."""

__version__ = "0.1.0"
