"""The model on a host: which files are there, where the others come from, how they are brought."""
