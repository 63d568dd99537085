"""The example server with its model in torch: `python examples/serve_torch.py --port 8000`.

Same options, weights, scheduler and HTTP front end as `serve.py`; the model is a tree of
`nn.Module`s whose `forward` methods carry `@probe`, and runs on a GPU where there is one.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

from serve import main

if __name__ == "__main__":
    if find_spec("torch") is None:
        sys.exit("serve_torch.py: torch is not installed; `pip install torch`, or use serve.py")
    from server.torch_model import load_torch_model

    sys.exit(main(load_torch_model))
