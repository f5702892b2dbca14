//! A mixture of experts on the processor: routing, sorting by expert, linear layers per expert, combination.

mod grouped_linear;
mod grouping;
mod route;

use crate::host::matrix::Precision;
use burn::backend::DispatchTensor;
use flow_core::RawTensor;
use flow_core::ops::{ExpertOps, GroupedWeights, Grouping, Routed, Stash};

/// The operations, matrix products in some precision.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CpuExperts {
    pub(crate) precision: Precision,
}

impl ExpertOps for CpuExperts {
    fn route(&self, stash: &dyn Stash, logits: &DispatchTensor, top_k: usize, normalize: bool) -> Routed {
        route::route(stash, logits, top_k, normalize)
    }

    fn group(&self, choices: &RawTensor, experts: usize) -> Grouping {
        grouping::group(choices, experts)
    }

    fn permute(&self, x: &DispatchTensor, grouping: &Grouping) -> DispatchTensor {
        grouping::permute(x, grouping)
    }

    fn grouped_linear(
        &self,
        stash: &dyn Stash,
        x: &DispatchTensor,
        grouping: &Grouping,
        weights: &GroupedWeights,
    ) -> DispatchTensor {
        grouped_linear::grouped_linear(stash, x, grouping, weights, self.precision)
    }

    fn combine(&self, y: &DispatchTensor, weights: &DispatchTensor, grouping: &Grouping) -> DispatchTensor {
        grouping::combine(y, weights, grouping)
    }
}
