"""Print which GPUs this rank sees, as JSON."""

from __future__ import annotations

import json
import os

import torch

# `accelerate launch` sets neither variable for a single process
device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
found = {
    "rank": int(os.environ.get("RANK", "0")),
    "visible": torch.cuda.device_count(),
    "uuid": str(torch.cuda.get_device_properties(device).uuid),
}
print(json.dumps(found), flush=True)
