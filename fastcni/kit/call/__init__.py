"""Handle one CNI request: its configuration, rollback, mode, delegates and log line."""
