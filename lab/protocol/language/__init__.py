"""The language: what a block, a host and a rank's memory are, and how their text is recorded. Users import `write`."""
