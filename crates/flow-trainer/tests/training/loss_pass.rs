//! A loss in a pass of its own, and its gradients beside those that a host computation expects.

use crate::losses::{IntoPlain, host};
use flow_core::{RawTensor, TrainingPass};
use flow_trainer::algorithm::{LossContext, PointLoss, Taught};

/// A loss in `pass`, of all else that `context` has, and its gradients. It is of an algorithm that computes no ratios.
pub fn loss_in(
    pass: TrainingPass<'_>,
    context: &LossContext<'_, '_>,
    loss: impl FnOnce(&LossContext<'_, '_>) -> PointLoss,
) -> (f64, Vec<Option<RawTensor>>) {
    let teachers = context.teachers.iter().map(|it| Taught {
        teacher: it.teacher,
        pass: it.pass.clone(),
        rows: it.rows.clone(),
    });
    let in_pass = LossContext {
        pass: &pass,
        current: context.current,
        sampling: context.sampling,
        reference: context.reference,
        old: context.old,
        fake: context.fake,
        surrogate: context.surrogate,
        surrogate_slow: context.surrogate_slow,
        teachers: teachers.collect(),
        policy: context.policy,
        kernels: context.kernels,
        device: context.device,
        batch: context.batch,
        advantages: context.advantages.clone(),
        gates: context.gates.clone(),
        noise: context.noise.clone(),
        before: context.before.clone(),
        compared: context.compared.clone(),
        site: context.site,
    };
    let found = loss(&in_pass);
    assert!(found.replayed.is_none());
    drop(in_pass);
    let gradients = pass.gradients(&found.loss);
    (host(&found.loss.into_dispatch_plain())[0], gradients)
}

/// That gradients are those expected, to this share of their norm, which is above `least`.
pub fn expect_gradients(
    found: &[Option<RawTensor>],
    expected: &[Option<RawTensor>],
    (least, share): (f64, f64),
) {
    let flat = |all: &[Option<RawTensor>]| -> Vec<f64> { all.iter().flatten().flat_map(host).collect() };
    let (found, expected) = (flat(found), flat(expected));
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let off = norm(&mut found.iter().zip(&expected).map(|(a, b)| a - b));
    let size = norm(&mut expected.iter().copied());
    assert!(size > least && found.len() == expected.len(), "{size}");
    assert!(off < share * size, "gradients are off by {off} of {size}");
}
