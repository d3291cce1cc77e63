"""The code that plugins share, with a directory for each subject."""
