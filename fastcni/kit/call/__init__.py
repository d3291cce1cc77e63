"""Code that handles a CNI request: its configuration, rollback, mode, delegates and log line."""
