//! The weights of blocks that the ranks of a run share out, `distributed.shard = "weights"`.

use super::{Environment, ModelOutline};
use crate::error::TrainError;
use flow_config::{Config, Shard};
use flow_core::BlockWeights;
use flow_exchange_cube::{BlockExchange, BlockParts};
use std::sync::Arc;

/// What gathers the weights of blocks from the parts of all ranks, for a model that has no weights yet; none where every rank has
/// all of them.
///
/// # Errors
/// [`TrainError::Setting`] with the first thing that forbids it.
pub(super) fn block_weights(
    config: &Config,
    environment: &Environment<'_>,
    outline: &ModelOutline,
) -> Result<Option<Arc<dyn BlockWeights>>, TrainError> {
    let world = environment.exchange.world();
    if config.distributed.shard != Shard::Weights || !world.is_several() {
        return Ok(None);
    }
    let distillation = environment.plugins.catalog().distillation_facts(config);
    let refused = flow_validate::sharded_weights(config, world.ranks, distillation);
    if let Some(refused) = refused.into_iter().next() {
        return Err(TrainError::refused(refused));
    }
    let exchange = environment.exchange.as_any();
    let Some(exchange) = exchange.and_then(|exchange| exchange.downcast_ref::<BlockExchange>()) else {
        return Err(TrainError::setting(
            "`distributed.shard = \"weights\"` needs an exchange by which ranks give one another the weights of blocks",
        )
        .with_help("put a `flow_exchange_cube::BlockExchange` over the one there is")
        .about("distributed.shard"));
    };
    let parts = BlockParts::new(
        outline.model.spec(),
        &outline.layout,
        (world, &environment.device),
    );
    Ok(Some(exchange.hold(parts)))
}
