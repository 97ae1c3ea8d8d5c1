"""Training: negatives, batches, the paper's loss and optional further terms."""
