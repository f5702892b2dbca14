//! Feature reuse between the steps of a rollout.
