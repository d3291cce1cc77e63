"""Change the host's firewall for pods. No other code of fastcni changes the host's firewall."""
