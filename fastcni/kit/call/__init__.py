"""A request and its handling: configuration, rollback, delegates, CHECK's comparisons, the log."""
