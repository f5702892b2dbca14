//! Activation checkpointing for flow-train: what backward keeps and what it computes again.
