//! Attention for flow-train: forward and backward, the same kernel in rollout and in training.
