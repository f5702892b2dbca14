//! `[distributed]`: one run on several processes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// `[distributed]`: one run on several processes. How many there are is the launcher's to say (`flow-train launch`, torchrun, srun,
/// mpirun), not the config's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DistributedConfig {
    /// Blocks into which the micro-batches of an update are cut. Gradients are summed within a block, then over blocks in an order that
    /// depends on their number alone: runs on every number of processes that divides it have the same bits. 0 is the number of
    /// processes at the start of the run.
    #[schemars(range(max = 4096))]
    pub lanes: usize,
    /// Seconds after which a process that says nothing ends the run. Must be more than a checkpoint takes, during which the others wait.
    #[schemars(range(min = 1, max = 604_800))]
    pub timeout_s: u64,
    /// Iterations between two comparisons of all processes' weights, bit by bit. 0 for none.
    #[schemars(range(max = 1_000_000))]
    pub check_replicas_every: usize,
    /// In which order gradients of different processes are added.
    pub order: SumOrder,
    /// How gradients travel between the processes.
    pub transport: Transport,
    /// NVIDIA's library NCCL (`libnccl.so.2`), relative to the config file. Without it, the one that the system's loader finds, or else the
    /// one that comes with the PyTorch of `python3`.
    pub nccl: Option<PathBuf>,
    /// What each process has a part of, where the others have whole copies: it takes less memory, and the run has the same bits.
    pub shard: Shard,
}

/// What processes share out among themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Shard {
    /// Nothing: every process has everything.
    #[default]
    None,
    /// The optimizer's moments (ZeRO-1): a process has those of some weights, steps these, and gives them to the others.
    Optimizer,
    /// As `optimizer`, and the weights of blocks, frozen or trained: a process has a part of each block, which is whole while it computes, and
    /// of trained ones the moments, copies and gradients of that part. Needs a policy of `[checkpointing]` that computes every block
    /// again.
    Weights,
}

/// In which order gradients of different processes are added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SumOrder {
    /// That of the lanes: the same bits on every number of processes that divides them.
    #[default]
    Lanes,
    /// NCCL's, between GPUs alone: it may be a little faster. Weights and metrics then depend on the number of processes in their last
    /// bits.
    Nccl,
}

/// How gradients travel between processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// NCCL between GPUs, TCP between processors.
    #[default]
    Auto,
    /// NCCL: GPUs alone.
    Nccl,
    /// TCP, through the host's memory: needs no library, and is slow for whole models. Sums have the same bits.
    Tcp,
}

impl Default for DistributedConfig {
    fn default() -> Self {
        Self {
            lanes: 0,
            timeout_s: 1800,
            check_replicas_every: 50,
            order: SumOrder::Lanes,
            transport: Transport::Auto,
            nccl: None,
            shard: Shard::None,
        }
    }
}
