"""A collection, one record for each product of each matrix: on this machine, or on many.

    collection -> jobs -> benches (local, cluster) -> run folder -> summary -> page

A run folder holds `run.json`, the settings, and `records.jsonl`, the truth; all else is made of them.
"""
