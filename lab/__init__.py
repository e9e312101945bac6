"""Two simulated DGX Sparks on one Linux machine, for tests and trials of the program without the hardware."""
