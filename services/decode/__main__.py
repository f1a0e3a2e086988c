"""A worker with the decode role: `python -m services.decode --model-path DIR`."""

from common.worker.process import main

if __name__ == "__main__":
    main("decode", default_roles="decode")
