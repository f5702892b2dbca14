//! Unites the features of shared dependencies; holds no code.
