//! What a model asks of a mixture of experts, typed by rank and checked for shape.
//!
//! Legend: `B` batch, `S` tokens, `D` channels, `E` experts, `K` experts of a token.

use super::Exec;
use crate::ops::{Activation, ExpertOps, GroupedWeights};
use crate::params::Handle;
use crate::tensors::plain;
use burn::tensor::{Int, Tensor};

/// The handles of a linear layer per expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertLayer {
    /// `[E, out, in]`.
    pub weight: Handle<3>,
    /// `[E, out]`.
    pub bias: Handle<2>,
}

/// What a router decided; see [`Routed`](crate::ops::Routed). All of it has the batch first, so it may cross the edge
/// of a region.
#[derive(Clone, Debug)]
pub struct Routing {
    /// How much each chosen expert counts, `[B, S, K]`.
    pub weights: Tensor<3>,
    /// The chosen experts, `[B, S, K]`.
    pub experts: Tensor<3, Int>,
    /// How unevenly a row's tokens load the experts, `[B]`.
    pub balance: Tensor<1>,
}

impl Exec<'_> {
    fn expert_ops(&self) -> &dyn ExpertOps {
        let kernels = self.kernels();
        kernels.ops().experts.unwrap_or_else(|| {
            panic!(
                "kernels `{}` have no operations of a mixture of experts",
                kernels.name()
            )
        })
    }

    /// Chooses `top_k` experts for each token by the softmax of `logits_BSE`.
    ///
    /// # Panics
    /// If there are fewer experts than `top_k`, or if the kernels have no operations of a mixture of experts.
    pub fn route(&self, logits_bse: Tensor<3>, top_k: usize, normalize: bool) -> Routing {
        let experts = logits_bse.dims()[2];
        assert!(
            (1..=experts).contains(&top_k),
            "{top_k} experts of {experts} for a token"
        );
        let logits = logits_bse.into_dispatch();
        let routed = self.expert_ops().route(&*self.stash, &logits, top_k, normalize);
        Routing {
            weights: Tensor::from_dispatch(routed.weights),
            experts: Tensor::from_dispatch(routed.experts),
            balance: Tensor::from_dispatch(routed.balance),
        }
    }

    /// `Σ over a token's experts of weights · down(activation(up(x)))`, `[B, S, D]`, for `x_BSD` and the `weights_BSK` and
    /// `experts_BSK` of a [`Routing`].
    ///
    /// # Panics
    /// If the kernels have no operations of a mixture of experts.
    pub fn experts(
        &self,
        x_bsd: Tensor<3>,
        weights_bsk: Tensor<3>,
        experts_bsk: Tensor<3, Int>,
        [up, down]: [&ExpertLayer; 2],
        activation: Activation,
    ) -> Tensor<3> {
        let [batch, tokens, _] = x_bsd.dims();
        let [rows, positions, _] = experts_bsk.dims();
        assert_eq!([batch, tokens], [rows, positions], "tokens and their experts");
        assert_eq!(
            weights_bsk.dims(),
            experts_bsk.dims(),
            "experts and how much they count"
        );
        let ops = self.expert_ops();
        let weights = |layer: &ExpertLayer, activation| GroupedWeights {
            weight: self.params.get(layer.weight).into_dispatch(),
            bias: self.params.get(layer.bias).into_dispatch(),
            activation,
        };
        let up = weights(up, activation);
        let count = Tensor::<3>::from_dispatch(up.weight.clone()).dims()[0];
        let grouping = ops.group(&plain(&experts_bsk.into_dispatch()), count);
        let sorted = ops.permute(&x_bsd.into_dispatch(), &grouping);
        let inner = ops.grouped_linear(&*self.stash, &sorted, &grouping, &up);
        let down = weights(down, Activation::None);
        let outer = ops.grouped_linear(&*self.stash, &inner, &grouping, &down);
        let weights = weights_bsk.into_dispatch();
        Tensor::from_dispatch(ops.combine(&outer, &weights, &grouping))
    }
}
