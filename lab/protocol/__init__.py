"""Protocols: what each agent of an all-reduce does, written in Python and compiled to a `Program`.

`write` is the language, `program` the result that every analysis consumes, `tables` its integer form for the machine.
The other modules are protocols written in the language.
"""
