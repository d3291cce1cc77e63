"""What pods have in the host's firewall: tables, marks of ownership, backends. Nothing else in fastcni changes it."""
