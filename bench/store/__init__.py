"""Our KV store beside a real Mooncake Store on one machine, and what its eviction keeps of recorded traffic.

    python -m bench.store [--rounds 7] [--json bench/results/store.json]
    python -m bench.store traces FOLDER

Servers and clients are processes of their own. Everything runs in a network namespace that the bench makes, since
Mooncake listens on every interface.
"""
