"""What makes training fast on a GPU, beside the kernels of longstep.ops: torch.compile of the parts between them.

Whole layers would be compiled once for every kind and every number of mixed blocks; the parts are few and repeat.
"""

import torch

from longstep.model.network import Model


def compile_parts(model: Model) -> None:
    """Compile mixes, norms, attention and MLPs in place, each kind once. Shapes must not change afterwards."""
    torch._dynamo.config.recompile_limit = 64  # one per kind, shape and number of mixed blocks
    for layer in model.layers:
        for part in layer.children():
            part.compile(dynamic=False)
    model.output_mix.compile(dynamic=False)
    model.norm.compile(dynamic=False)
