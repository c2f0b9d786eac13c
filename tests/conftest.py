"""One thread per test process: two cores shared by several threads make small operations slower, not faster."""

import torch

torch.set_num_threads(1)
