"""Change the host's firewall for pods: tables, marks of ownership, backends. No other code of fastcni changes the
host's firewall."""
