//! Joining a run of several processes.

use crate::Registries;
use flow_config::{Config, DeviceKind, Diagnostic, RewardConfig, Shard, SumOrder, Transport};
use flow_exchange::{Alone, Exchange, Lost, Ranks, World, tcp};
use flow_exchange_cube::BlockExchange;
use flow_rendezvous::{Launch, Membership, RendezvousError};
use flow_rewards::RewardKind;
use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for the other processes to start.
const START: Duration = Duration::from_secs(600);

/// Why processes do not begin together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// They do not meet.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// One of them has not what it needs.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// NCCL is for GPUs.
    #[error(
        "`distributed.transport = \"nccl\"` moves gradients of NVIDIA GPUs, and `device.kind` is \"{0}\"; set it to \"auto\", which takes \
         what the device needs"
    )]
    NoGpu(&'static str),
    /// Sums in the order of NCCL are NCCL's.
    #[error(
        "`distributed.order = \"nccl\"` lets NCCL add gradients, which it does on NVIDIA GPUs alone; here they would be added by the host. \
         Set it to \"lanes\", or `device.kind = \"cuda\"` and `distributed.transport = \"auto\"`"
    )]
    NoNcclOrder,
}

/// What the launcher of this process says; none of a run of one process.
///
/// # Errors
/// A variable that is missing or wrong.
pub fn launched() -> Result<Option<Launch>, RendezvousError> {
    Launch::from_environment()
}

/// Meets the other processes that the launcher started, and where gradients are on GPUs, joins these. Relative paths of the config start from
/// `base`.
///
/// # Errors
/// Whatever keeps them apart.
pub fn join(launch: Option<Launch>, config: &Config, base: &Path) -> Result<Arc<dyn Exchange>, JoinError> {
    let Some(launch) = launch else {
        return Ok(Arc::new(Alone));
    };
    if config.distributed.order == SumOrder::Nccl && !is_by_nccl(config) {
        return Err(JoinError::NoNcclOrder);
    }
    let timeout = Duration::from_secs(config.distributed.timeout_s);
    let membership = Membership::join(launch, timeout.min(START))?;
    let ranks = tcp(membership, timeout)?;
    let kind = config.device.kind;
    let exchange: Arc<dyn Exchange> = match (config.distributed.transport, kind) {
        (Transport::Nccl | Transport::Auto, DeviceKind::Cuda) => by_nccl(ranks, config, base, timeout)?,
        (Transport::Nccl, DeviceKind::Cpu) => return Err(JoinError::NoGpu(kind.name())),
        (Transport::Auto | Transport::Tcp, _) => Arc::new(ranks),
    };
    Ok(with_blocks(exchange, config))
}

/// The exchange with which ranks also give one another the weights of blocks, where the config shares these out.
pub(crate) fn with_blocks(exchange: Arc<dyn Exchange>, config: &Config) -> Arc<dyn Exchange> {
    let is_shared = config.distributed.shard == Shard::Weights && exchange.world().is_several();
    let has_blocks = exchange
        .as_any()
        .is_some_and(|exchange| exchange.is::<BlockExchange>());
    match is_shared && !has_blocks {
        true => Arc::new(BlockExchange::new(exchange)),
        false => exchange,
    }
}

/// Whether NCCL moves gradients.
fn is_by_nccl(config: &Config) -> bool {
    config.device.kind == DeviceKind::Cuda && config.distributed.transport != Transport::Tcp
}

/// What is to be said of a run of several processes before it begins, if anything.
pub fn notice(config: &Config, world: World) -> Option<&'static str> {
    let is_nccl = config.distributed.order == SumOrder::Nccl && world.is_several();
    is_nccl.then_some(
        "`distributed.order = \"nccl\"`: gradients are added in an order that NCCL chooses, so weights and metrics depend on the number of \
         processes in their last bits, and may from run to run",
    )
}

#[cfg(feature = "cuda")]
fn by_nccl(
    ranks: Ranks,
    config: &Config,
    base: &Path,
    timeout: Duration,
) -> Result<Arc<dyn Exchange>, JoinError> {
    let library = config.distributed.nccl.as_ref().map(|path| base.join(path));
    let settings = flow_exchange_cube::NcclSettings {
        gpu: own_device(config, ranks.world()).device.index,
        library: library.as_deref(),
        timeout: timeout.min(START),
        order: match config.distributed.order {
            SumOrder::Lanes => flow_exchange_cube::SumOrder::Lanes,
            SumOrder::Nccl => flow_exchange_cube::SumOrder::Nccl,
        },
    };
    Ok(Arc::new(flow_exchange_cube::NcclExchange::start(
        ranks, settings,
    )?))
}

/// This build opens no GPU, which is said where the device is opened.
#[cfg(not(feature = "cuda"))]
fn by_nccl(ranks: Ranks, _: &Config, _: &Path, _: Duration) -> Result<Arc<dyn Exchange>, JoinError> {
    Ok(Arc::new(ranks))
}

/// The config with the GPU of this process: `device.index` is that of the machine's first process, and the others have the next ones. A
/// process that sees one GPU alone (the launcher chose it by `CUDA_VISIBLE_DEVICES`) has that one.
pub fn own_device(config: &Config, world: World) -> Cow<'_, Config> {
    if config.device.kind != DeviceKind::Cuda || !world.is_several() || flow_core::device::visible_gpus() == 1
    {
        return Cow::Borrowed(config);
    }
    let mut own = config.clone();
    own.device.index += world.local_rank;
    Cow::Owned(own)
}

/// What of a config is not right on `ranks` processes.
pub fn refused_on(config: &Config, ranks: usize, registries: &Registries) -> Vec<Diagnostic> {
    let rewards = &registries.plugins.rewards;
    // The parameters decide for some: servers may be asked for whole groups.
    let is_group_wise = |reward: &RewardConfig| {
        let factory = rewards.get(&reward.kind).ok();
        factory.is_some_and(|factory| factory.kind_with(&reward.params) == RewardKind::Groupwise)
    };
    let group_wise = config.rewards.iter().any(is_group_wise);
    let mut found = flow_validate::several(config, ranks, group_wise);
    let learned_from = registries.accelerators.audit_share(&config.acceleration.rollout);
    let learns = flow_validate::learns_alone(ranks, learned_from);
    found.extend(learns.map(|(problem, help)| {
        Diagnostic::error(flow_validate::codes::NOT_ON_SEVERAL, problem)
            .path("acceleration.rollout")
            .help(help)
    }));
    let distillation = registries.catalog().distillation_facts(config);
    found.extend(flow_validate::sharded_weights(config, ranks, distillation));
    found
}
