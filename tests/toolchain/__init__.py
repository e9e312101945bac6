"""Tests of the toolchain: builder, language host, command plugin, Docker plugin."""
