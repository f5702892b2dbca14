//! Diffusion transformers, LoRA, and their weights in and out.
