"""The text of a protocol: its files, what can be written where, the changed text recorded anew, and the patch."""
