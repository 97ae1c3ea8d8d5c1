"""Training: negatives, batches, the loss of the paper and what may stand beside it."""
