//! The forward process: a point on the straight path between image and noise, where decoupled losses are taken.
//!
//! Legend: `B` rows, `N` values of one latent. `x = (1 - sigma) x0 + sigma e`, whose velocity is `e - x0` (Lipman et al. 2023,
//! arXiv 2210.02747; Liu et al. 2023, arXiv 2209.03003).

use super::{LossContext, LossPoint, RowTimesConfig};
use crate::policy::{CallSite, Conditions, Policy};
use burn::tensor::Tensor;
use flow_core::tensors::plain;
use flow_core::{CallContext, Exec};

/// A micro-batch at a drawn time, or with a drawn time for each row.
pub(super) struct Forward {
    /// Of all rows; not a number where each has its own.
    pub sigma: f64,
    pub sigma_b1: Tensor<2>,
    /// The images, `[B, N]`.
    pub clean_bn: Tensor<2>,
    /// The noise, `[B, N]`.
    noise_bn: Tensor<2>,
    /// The points on the path, `[B, N]`.
    pub x_bn: Tensor<2>,
}

impl Forward {
    pub(super) fn new(context: &LossContext<'_, '_>, position: LossPoint) -> Self {
        let LossPoint::Time { sigma, .. } = position else {
            unreachable!("decoupled algorithms take their loss at drawn times");
        };
        let sigmas = vec![sigma as f32; context.batch.samples.len()];
        Self::at(context, sigma, sigmas)
    }

    /// With the times that `times` draws for the rows at `addresses`.
    pub(super) fn of_rows(
        context: &LossContext<'_, '_>,
        position: LossPoint,
        times: &RowTimesConfig,
        addresses: &[u64],
    ) -> Self {
        let LossPoint::EachRow { seed, draw } = position else {
            unreachable!("algorithms that learn from records give each row a time");
        };
        let sigmas = addresses.iter().map(|row| times.sigma(seed, *row, draw) as f32);
        Self::at(context, f64::NAN, sigmas.collect())
    }

    fn at(context: &LossContext<'_, '_>, sigma: f64, sigmas: Vec<f32>) -> Self {
        let batch = sigmas.len();
        let clean_bn = Tensor::<2>::from_dispatch(context.batch.clean.clone());
        let noise = context.noise.clone();
        let noise_bn = Tensor::from_dispatch(noise.expect("the loop draws the noise of a drawn time"));
        let sigma_b: Tensor<1> = context.device.tensor(sigmas, [batch]);
        let sigma_b1: Tensor<2> = sigma_b.unsqueeze_dim(1);
        let x_bn = clean_bn.clone() * (sigma_b1.clone().neg() + 1.0) + noise_bn.clone() * sigma_b1.clone();
        Self {
            sigma,
            sigma_b1,
            clean_bn,
            noise_bn,
            x_bn,
        }
    }

    /// The model's velocity `[B, N]` under the guidance of the rollout, through the context that `open` makes of the call.
    pub(super) fn velocity<'w>(
        &self,
        context: &LossContext<'_, '_>,
        open: impl FnOnce(CallContext) -> Exec<'w>,
    ) -> Tensor<2> {
        self.velocity_of((context.policy, &context.batch.conditions), context, open)
    }

    /// The same under another guidance, one of [`Algorithm::guidance_scales`](super::Algorithm::guidance_scales) or 1.
    pub(super) fn velocity_at<'w>(
        &self,
        context: &LossContext<'_, '_>,
        guidance_scale: f32,
        open: impl FnOnce(CallContext) -> Exec<'w>,
    ) -> Tensor<2> {
        let (policy, conditions) = context.policy.under(guidance_scale, &context.batch.conditions);
        self.velocity_of((&policy, &conditions), context, open)
    }

    /// The same without classifier-free guidance; a model that embeds a scale is told that of the rollout.
    pub(super) fn velocity_unguided<'w>(
        &self,
        context: &LossContext<'_, '_>,
        open: impl FnOnce(CallContext) -> Exec<'w>,
    ) -> Tensor<2> {
        let policy = Policy {
            guidance_scale: 1.0,
            ..context.policy.clone()
        };
        self.velocity_of((&policy, &context.batch.conditions), context, open)
    }

    fn velocity_of<'w>(
        &self,
        (policy, conditions): (&Policy, &Conditions),
        context: &LossContext<'_, '_>,
        open: impl FnOnce(CallContext) -> Exec<'w>,
    ) -> Tensor<2> {
        let site = CallSite {
            step: 0,
            sigma: Some(self.sigma).filter(|sigma| !sigma.is_nan()),
            ..context.site
        };
        let exec = open(policy.call(site, &context.batch.samples));
        let sigma_b: Tensor<1> = self.sigma_b1.clone().squeeze_dim(1);
        policy.velocity(&exec, self.x_bn.clone(), sigma_b, conditions)
    }

    /// `mean((v - (e - x0))²)` per row, `[B]`, differentiable in `v`.
    pub(super) fn error(&self, context: &LossContext<'_, '_>, velocity_bn: Tensor<2>) -> Tensor<1> {
        distance(context, velocity_bn, self.target())
    }

    /// The velocity from image to noise, `e - x0`, `[B, N]`.
    pub(super) fn target(&self) -> Tensor<2> {
        self.noise_bn.clone() - self.clean_bn.clone()
    }
}

/// `mean((a - b)²)` per row of `[B, N]`, differentiable in `a`; gives `[B]`.
pub(super) fn distance(context: &LossContext<'_, '_>, a_bn: Tensor<2>, b_bn: Tensor<2>) -> Tensor<1> {
    let (a, b) = (a_bn.into_dispatch(), plain(&b_bn.into_dispatch()));
    Tensor::from_dispatch(context.kernels.ops().loss.mean_squared_distance(&a, &b))
}

/// How good images are, from 0 to 1: `clamp(A / clip / 2 + 1/2, 0, 1)` of advantages `[B]`.
pub(super) fn optimality(advantages_b: Tensor<1>, clip: f32) -> Tensor<1> {
    (advantages_b / (2.0 * clip) + 0.5).clamp(0.0, 1.0)
}

/// Values of `[B]` whose gradient is that of the rows that learn, for which `learns_b` has 1, for the others 0.
pub(super) fn held(values_b: Tensor<1>, learns_b: &Tensor<1>) -> Tensor<1> {
    let fixed = detached(&values_b);
    values_b * learns_b.clone() + fixed * (learns_b.clone().neg() + 1.0)
}

/// Values without a graph.
pub(super) fn detached<const D: usize>(tensor: &Tensor<D>) -> Tensor<D> {
    Tensor::from_dispatch(plain(&tensor.clone().into_dispatch()))
}
