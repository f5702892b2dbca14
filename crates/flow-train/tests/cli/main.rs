//! The `flow-train` command, driven as people drive it: processes, files, exit codes.

mod acceleration;
mod checkpointing;
mod distributed;
mod drift;
mod elsewhere;
mod errors;
mod exact_reuse;
mod feature_cache;
mod fetch;
mod folders;
mod killed_ranks;
mod names;
mod outputs;
mod own_disks;
mod pictures;
mod remote;
mod resume;
mod shells;
mod support;
mod tools;
mod train;
mod tutorial;
mod weights;
mod words;
