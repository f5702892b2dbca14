//! flow-train: reinforcement learning of flow-matching diffusion transformers.
