"""Pages: one HTML file each, with its pictures."""
