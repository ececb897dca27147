error: launcher `accelerate` needs the same number of GPUs on every node, found 2 x 8 and 1 x 4 and 1 x 2
hint: None
