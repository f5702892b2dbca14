//! Which frozen matrices are stored in low precision, and which trained ones are multiplied in it.

use super::ModelSpec;
use crate::low_precision::{LowPrecision, LowPrecisionCompute, LowPrecisionFormat};
use crate::params::{ParamKind, ParamLayout, ParamSpec};
use flow_registry::names_layer;
use std::sync::Arc;

/// Input channels of the narrowest layer that is stored in low precision: of fewer, a row's scale takes what its codes save.
pub const MIN_LOW_PRECISION_COLUMNS: usize = 16;

/// What a config says of matrices in low precision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LowPrecisionRule {
    /// How a value is stored.
    pub format: LowPrecisionFormat,
    /// What products with them multiply.
    pub compute: LowPrecisionCompute,
    /// Layers that stay as they are: whole names or their ends from a dot on, `*` standing for any characters.
    pub keep: Vec<String>,
}

impl LowPrecisionRule {
    /// How each weight of `layout` is stored: in low precision the matrices of linear layers in the model's repeated blocks, of at
    /// least [`MIN_LOW_PRECISION_COLUMNS`] input channels, that no pattern keeps. None if the layout has no adapters, since all is trained then. So
    /// layers before and behind the blocks, norms, biases, tables and experts stay as they are.
    pub fn select(&self, layout: &ParamLayout, spec: &ModelSpec) -> Arc<[Option<LowPrecision>]> {
        match layout.has_adapters() {
            true => self.chosen(layout, spec),
            false => Arc::from([]),
        }
    }

    /// What each weight of `layout` is rounded to right before a product, where all is trained and products are in FP8: the matrices
    /// that [`select`](Self::select) would choose if they were frozen. None if the layout has adapters.
    pub fn select_trained(&self, layout: &ParamLayout, spec: &ModelSpec) -> Arc<[Option<LowPrecision>]> {
        match !layout.has_adapters() && self.compute.quantises_activations() {
            true => self.chosen(layout, spec),
            false => Arc::from([]),
        }
    }

    fn chosen(&self, layout: &ParamLayout, spec: &ModelSpec) -> Arc<[Option<LowPrecision>]> {
        let of = |(index, weight): (usize, &ParamSpec)| {
            let is_kept = self
                .keep
                .iter()
                .any(|pattern| names_layer(pattern, layer(weight)));
            let matrix = candidate(layout, spec, index)?;
            (!is_kept).then_some(LowPrecision {
                format: self.format,
                compute: self.compute,
                rows: matrix[0],
                columns: matrix[1],
            })
        };
        layout.specs().iter().enumerate().map(of).collect()
    }

    /// Patterns of `keep` that name none of the layers that would be stored, or multiplied, in low precision.
    pub fn idle_patterns<'a>(&'a self, layout: &ParamLayout, spec: &ModelSpec) -> Vec<&'a str> {
        let weights = layout.specs().iter().enumerate();
        let candidates = weights.filter(|(index, _)| candidate(layout, spec, *index).is_some());
        let layers: Vec<&str> = candidates.map(|(_, weight)| layer(weight)).collect();
        let patterns = self.keep.iter().map(String::as_str);
        patterns
            .filter(|pattern| !layers.iter().any(|layer| names_layer(pattern, layer)))
            .collect()
    }
}

/// The name of a weight's layer.
fn layer(weight: &ParamSpec) -> &str {
    weight.name.strip_suffix(".weight").unwrap_or(&weight.name)
}

/// The shape of a weight that may be stored, or if it is trained multiplied, in low precision.
fn candidate(layout: &ParamLayout, spec: &ModelSpec, index: usize) -> Option<[usize; 2]> {
    let weight = &layout.specs()[index];
    let [rows, columns] = weight.shape[..] else {
        return None;
    };
    let is_of_block = spec.block_of(&weight.name).is_some();
    let is_of_model = weight.kind == ParamKind::Base && layout.is_matrix(index);
    let chosen = is_of_model && is_of_block && columns >= MIN_LOW_PRECISION_COLUMNS;
    chosen.then_some([rows, columns])
}

#[cfg(test)]
mod tests;
