"""Protocols: what each agent of an all-reduce does, written in Python and compiled to a `Program`.

`write` is what a protocol imports, `language` what stands behind it; `program` is the result that every analysis
consumes, `tables` its integer form for the machine. `library` finds protocols by name and holds the lab's own; `seed`
and `published` hold those of others.
"""
