error: launcher `accelerate` needs as many GPUs on every node, not 1 x 8 and 1 x 4 and 1 x 2
hint: None
