//! Products with matrices in low precision on the device: those of the widened matrix, bit for bit.

use crate::support::{Side, computing, values};
use burn::backend::{AutodiffBackend, Dispatch, DispatchTensor};
use flow_core::cpu::to_host;
use flow_core::ops::{Compute, LinearWeights};
use flow_core::tensors::{leaf, plain};
use flow_core::{Activation, LowPrecision, LowPrecisionFormat, RawTensor, autograd};

const RANK: usize = 4;

/// The result of a layer with an adapter, and the gradients of its input and of the adapter.
fn computed(side: &Side, weight: &RawTensor, low_precision: Option<LowPrecision>) -> Vec<Vec<u32>> {
    let (rows, [outputs, inputs]) = (7, [30, 85]);
    let tracked = |draw, shape: &[usize]| leaf(&side.device.plain(values(draw, shape), shape));
    let leaves = [
        tracked(1, &[rows, inputs]),
        tracked(2, &[RANK, inputs]),
        tracked(3, &[outputs, RANK]),
    ];
    let weights = LinearWeights {
        weight: weight.clone(),
        low_precision,
        bias: None,
        adapter: Some((leaves[1].clone(), leaves[2].clone(), 0.5)),
    };
    let model = side.kernels.ops().model;
    let output = model.linear(&Compute, &leaves[0], &weights, Activation::Silu);
    let result = plain(&output);
    let seed = side.device.plain(values(4, &[rows, outputs]), &[rows, outputs]);
    let gradients = autograd::backward_from(vec![output], vec![Some(seed)]);
    let mut gradients = gradients.expect("gradients are wanted");
    let gradient = |leaf: &DispatchTensor| {
        <Dispatch as AutodiffBackend>::grad_remove(leaf, &mut gradients)
            .expect("a tracked input gets a gradient")
    };
    let all: Vec<RawTensor> = std::iter::once(result)
        .chain(leaves.iter().map(gradient))
        .collect();
    let bits = |tensor: &RawTensor| to_host(tensor).iter().map(|value| value.to_bits()).collect();
    all.iter().map(bits).collect()
}

#[test]
fn products_and_gradients_are_those_of_the_widened_matrix() {
    for side in computing() {
        for format in LowPrecisionFormat::ALL {
            let of = LowPrecision {
                format,
                rows: 30,
                columns: 85,
            };
            let words = of.quantise(&values(9, &[30, 85])).expect("finite values");
            let widened = side.device.plain(of.widen(&words), &[30, 85]);
            let words = side.device.words(words);
            assert_eq!(
                of.host(&words),
                to_host(&widened),
                "{format}: the words on the host"
            );
            let found = computed(&side, &words, Some(of));
            assert_eq!(
                found,
                computed(&side, &widened, None),
                "{format}, {}",
                side.kernels.name()
            );
        }
    }
}
