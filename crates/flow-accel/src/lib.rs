//! The accelerator trait, its registry and its slots.
