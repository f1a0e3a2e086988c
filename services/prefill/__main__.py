"""A worker with the prefill role: `python -m services.prefill --model-path DIR`."""

from common.worker.process import main

if __name__ == "__main__":
    main("prefill", default_roles="prefill")
