//! Low-rank adapters (Hu et al. 2021, arXiv:2106.09685): choosing what to adapt, what to train, merging, and files.
//!
//! The sum `W + s·B·A` is never formed while a model runs; [`merge`] forms it once, for export.

mod merge;
mod original;
mod pattern;
mod peft;
mod read;
mod tensor_name;
mod write;

pub use merge::merge;
pub use original::{OriginalLayer, OriginalPart};
pub use read::{AdapterFile, is_adapter, load_adapters};
pub use write::{AdapterLayout, export_adapters, save_adapters};

pub(crate) use read::is_made_of_factors;

use crate::{Architecture, ModelError};
use flow_core::{ParamKind, ParamLayout};
use flow_registry::names_layer;
use std::sync::Arc;

/// What all adapters of a model have in common, in the form [`add_lora`] takes.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterConfig {
    /// Rank of every adapter.
    pub rank: usize,
    /// Scale times rank.
    pub alpha: f32,
    /// Adapted layers.
    pub targets: Vec<String>,
}

/// Adds adapters of `rank` with scale `alpha / rank` to the linear layers of `model` that `targets` name, and gives
/// the names of those layers, in the layout's order.
///
/// A target is a name such as `transformer_blocks.3.attn.to_q`, the end of one such as `attn.to_q` or `to_q`, or
/// either of them with `*` for any characters. `layout` is a copy of the model's own; weights made from it serve the
/// model unchanged.
///
/// # Errors
/// [`ModelError::Adapter`] if a target names no linear layer (with the nearest one that exists), if a layer has an
/// adapter already, or if rank or alpha make no sense. `layout` is unchanged then.
pub fn add_lora(
    model: &dyn Architecture,
    layout: &mut ParamLayout,
    targets: &[String],
    rank: usize,
    alpha: f32,
) -> Result<Vec<String>, ModelError> {
    let error = |problem: String| Err(ModelError::Adapter(problem));
    if !(1..=4096).contains(&rank) {
        return error(format!("rank {rank} must be between 1 and 4096"));
    }
    if !(alpha.is_finite() && alpha > 0.0) {
        return error(format!("alpha {alpha} must be a finite number above 0"));
    }
    if targets.is_empty() {
        return error("no targets; name linear layers, for instance `attn.to_q`".into());
    }
    let names: Vec<String> = model
        .linears()
        .iter()
        .map(|linear| stem(&layout.specs()[linear.weight.index()].name).to_owned())
        .collect();
    if let Some(problem) = pattern::unmatched(targets, &names) {
        return error(problem);
    }
    let chosen = |name: &String| targets.iter().any(|target| names_layer(target, name));
    let chosen: Vec<_> = model
        .linears()
        .iter()
        .zip(&names)
        .filter(|(_, name)| chosen(name))
        .collect();
    if let Some((_, name)) = chosen
        .iter()
        .find(|(linear, _)| layout.adapter(linear.weight).is_some())
    {
        return error(format!("`{name}` has an adapter already"));
    }
    for (linear, _) in &chosen {
        layout.add_adapter(linear.weight, rank, alpha)?;
    }
    Ok(chosen.into_iter().map(|(_, name)| name.clone()).collect())
}

/// Which weights are trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trained {
    /// Every base weight; no buffers, no adapters.
    Full,
    /// The adapters alone.
    Lora,
}

/// One flag per weight of `layout`: whether it gets a gradient.
///
/// # Errors
/// [`ModelError::Adapter`] if adapters are to be trained and there are none.
pub fn trained_mask(layout: &ParamLayout, trained: Trained) -> Result<Arc<[bool]>, ModelError> {
    let kind = match trained {
        Trained::Full => ParamKind::Base,
        Trained::Lora if layout.has_adapters() => ParamKind::Adapter,
        Trained::Lora => {
            let problem = "none to train; add some to the layout first (`add_lora`)";
            return Err(ModelError::Adapter(problem.into()));
        }
    };
    Ok(layout.specs().iter().map(|spec| spec.kind == kind).collect())
}

/// The name of the layer that a weight belongs to.
fn stem(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}
