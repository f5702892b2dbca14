//! Products that a layer will ask for: what is compiled before backward begins.

use flow_kernels_cube::Element;
use flow_matmul_cube::problem::{Layout, Matmul};

/// The products of a layer's backward pass, as far as they follow from its forward one: with no activation fused to them, and for
/// an adapter if there is one, else for the matrix, whose gradient is stored as `gradients`. Where forward multiplies codes, the gradient of
/// the input may be a product of numbers or of codes, so both are there.
pub(super) fn backward_of(forward: &Matmul, gradients: Element) -> Vec<Matmul> {
    let &Matmul { m, n, k, rank, .. } = forward;
    if forward.layout != Layout::Nt || forward.groups > 0 {
        return Vec::new();
    }
    let plain = |layout, size| Matmul::plain(layout, size, forward.element);
    let over_rows = |size, output| Matmul {
        output,
        ..plain(Layout::Tn, size)
    };
    let input = Matmul {
        rank,
        ..plain(Layout::Nn, [m, k, n])
    };
    let of_codes = forward.is_scaled().then(|| Matmul {
        rank,
        storage: forward.storage,
        ..plain(Layout::Nt, [m, k, n])
    });
    let of_weights = match rank {
        0 => vec![over_rows([n, k, m], gradients)],
        _ => vec![
            plain(Layout::Nn, [m, rank, n]),
            over_rows([rank, k, m], Element::F32),
            over_rows([n, rank, m], Element::F32),
        ],
    };
    std::iter::once(input).chain(of_codes).chain(of_weights).collect()
}

#[cfg(all(test, feature = "lavapipe"))]
mod tests {
    use super::*;
    use crate::cube::linear::linear;
    use crate::cube::products::Products;
    use flow_core::device::ComputeDevice;
    use flow_core::ops::{Compute, LinearWeights};
    use flow_core::tensors::leaf;
    use flow_core::{Activation, autograd};
    use std::collections::HashSet;

    #[test]
    fn what_a_layers_backward_pass_computes_follows_from_its_forward_pass() {
        let device = ComputeDevice::vulkan().unwrap_or_else(|error| panic!("{error:?}"));
        for rank in [0, 4] {
            let plain = |shape: [usize; 2]| device.plain(vec![0.5; shape[0] * shape[1]], &shape);
            let tracked = |shape| leaf(&plain(shape));
            let weights = LinearWeights {
                low_precision: None,
                weight: if rank == 0 {
                    tracked([8, 10])
                } else {
                    plain([8, 10])
                },
                bias: None,
                adapter: (rank > 0).then(|| (tracked([rank, 10]), tracked([8, rank]), 0.25)),
            };
            let products = Products::storing(Element::F32);
            let x = tracked([6, 10]);
            let y = linear(&Compute, &x, &weights, Activation::None, Element::F32, &products);
            autograd::backward_from(vec![y], vec![Some(plain([6, 8]))]).expect("gradients are wanted");

            let run: HashSet<Matmul> = products
                .known
                .lock()
                .expect("nobody panicked")
                .keys()
                .copied()
                .collect();
            let (forward, backward): (Vec<_>, Vec<_>) =
                run.into_iter().partition(|call| call.layout == Layout::Nt);
            let of_layer = forward
                .iter()
                .find(|call| call.n == 8)
                .expect("the layer has 8 outputs");
            let backward_products = backward_of(of_layer, Element::F32);
            assert_eq!(
                backward.into_iter().collect::<HashSet<_>>(),
                backward_products.into_iter().collect::<HashSet<_>>(),
                "rank {rank}"
            );
        }
    }
}
