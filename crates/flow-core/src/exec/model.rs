//! The interface of flow-matching models.

use super::Exec;
use crate::model::{ModelInput, ModelSpec};
use crate::params::ParamLayout;
use burn::tensor::Tensor;
use std::fmt::Debug;
use std::sync::Arc;

/// A model that predicts the velocity `noise - data` (Lipman et al. 2022, arXiv:2210.02747; Liu et al. 2022,
/// arXiv:2209.03003).
///
/// Written once against [`Exec`]; it holds weight handles, not weights.
pub trait FlowModel: Debug + Send + Sync {
    /// What it is.
    fn spec(&self) -> &ModelSpec;

    /// Its weights' names and shapes.
    fn layout(&self) -> &Arc<ParamLayout>;

    /// The velocity, `[B, N]`.
    fn velocity(&self, exec: &Exec<'_>, input: ModelInput) -> Tensor<2>;

    /// The velocity, and of a model with experts how unevenly each row's tokens load them: the mean over its blocks of
    /// [`Routed::balance`](crate::ops::Routed::balance), `[B]`. Training from random weights adds it to the loss.
    fn velocity_and_balance(&self, exec: &Exec<'_>, input: ModelInput) -> (Tensor<2>, Option<Tensor<1>>) {
        (self.velocity(exec, input), None)
    }
}
