"""The state of pods in the host's firewall: tables, marks of ownership, backends. No other code of fastcni changes the
host's firewall."""
