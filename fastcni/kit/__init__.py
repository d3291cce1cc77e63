"""Code that several plugins share, with a directory for each subject."""
