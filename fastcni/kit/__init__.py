"""What plugins share, one folder a subject. Plugins are functions over this."""
