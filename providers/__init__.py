"""Dynamic resources whose state is read on the live hosts: host, image, gates."""
