"""The code that plugins share, with a folder for each subject."""
