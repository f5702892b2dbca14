//! Attention in f64, forward and backward, by definition.

use super::case::Case;
use super::data::{Data, Operand};
use flow_attention_mask::MaskError;

/// Results and gradients in logical order: what kernels come to, or must come to.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// `[B, H, S_q, D]`; 0 where no key is allowed.
    pub o: Vec<f64>,
    /// `[B, H, S_q]`; plus infinity where no key is allowed.
    pub lse: Vec<f64>,
    /// `[B, H, S_q, D]`.
    pub dq: Vec<f64>,
    /// `[B, H_kv, S, D]` of each segment.
    pub dk: [Vec<f64>; 2],
    /// `[B, H_kv, S, D]` of each segment.
    pub dv: [Vec<f64>; 2],
}

/// What kernels must come to.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    /// Exact results.
    pub results: Results,
    /// For each row of `dq` the root of the sum of the squares of what it is a sum of, each before differences are
    /// taken: the size that rounding errors are in proportion to, also where the sum vanishes.
    pub dq_terms: Vec<f64>,
    /// The same for each row of `dk`, of each segment.
    pub dk_terms: [Vec<f64>; 2],
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(to: &mut [f64], factor: f64, from: &[f64]) {
    to.iter_mut()
        .zip(from)
        .for_each(|(to, from)| *to += factor * from);
}

/// Result and gradients of a case.
///
/// # Errors
/// If the case's mask does not fit its sizes.
pub fn reference(case: &Case, data: &Data) -> Result<Expected, MaskError> {
    let mask = case.mask.mask(case.sizes())?;
    let mask = mask.bind(case.sizes())?;
    let (dim, keys) = (case.head_dim, case.sizes().keys());
    let rows = case.batch * case.heads * case.queries;
    let like = |operand: &Operand| vec![0.0; operand.values.len()];
    let mut expected = Results {
        o: vec![0.0; rows * dim],
        lse: vec![f64::INFINITY; rows],
        dq: vec![0.0; rows * dim],
        dk: [like(&data.k[0]), like(&data.k[1])],
        dv: [like(&data.v[0]), like(&data.v[1])],
    };
    let mut dq_terms = vec![0.0; rows];
    let mut dk_terms = [0, 1].map(|i| vec![0.0; data.k[i].values.len() / dim]);
    for (row, dq_terms) in dq_terms.iter_mut().enumerate() {
        let (head, query) = (row / case.queries, row % case.queries);
        let (batch, kv_head) = (
            head / case.heads,
            head % case.heads / (case.heads / case.kv_heads),
        );
        let q = &data.q.values[row * dim..][..dim];
        let d_o = &data.d_o.values[row * dim..][..dim];
        // Segment and first element of each allowed key.
        let places: Vec<(usize, usize)> = (0..keys)
            .filter(|&key| mask.allows(batch, query, key))
            .map(|key| {
                let segment = usize::from(key >= case.kv_segments[0]);
                let (key, count) = (key - segment * case.kv_segments[0], case.kv_segments[segment]);
                (segment, ((batch * case.kv_heads + kv_head) * count + key) * dim)
            })
            .collect();
        if places.is_empty() {
            continue;
        }
        let scores: Vec<f64> = places
            .iter()
            .map(|&(s, at)| dot(q, &data.k[s].values[at..][..dim]) * case.scale)
            .collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
        expected.lse[row] = largest + sum.ln();
        let weights: Vec<f64> = scores
            .iter()
            .map(|score| (score - expected.lse[row]).exp())
            .collect();
        let products: Vec<f64> = places
            .iter()
            .map(|&(s, at)| dot(d_o, &data.v[s].values[at..][..dim]))
            .collect();
        let delta: f64 = dot(&weights, &products);
        for ((&(s, at), &weight), product) in places.iter().zip(&weights).zip(products) {
            add(
                &mut expected.o[row * dim..][..dim],
                weight,
                &data.v[s].values[at..][..dim],
            );
            add(&mut expected.dv[s][at..][..dim], weight, d_o);
            let gradient = weight * (product - delta) * case.scale;
            add(
                &mut expected.dq[row * dim..][..dim],
                gradient,
                &data.k[s].values[at..][..dim],
            );
            add(&mut expected.dk[s][at..][..dim], gradient, q);
            // A product of normal vectors is of this size, and so are the partial sums of one that comes out smaller.
            let v = &data.v[s].values[at..][..dim];
            let usual = (dot(d_o, d_o) * dot(v, v) / dim as f64).sqrt();
            let size = weight * (product.abs() + delta.abs()).max(usual) * case.scale;
            let k = &data.k[s].values[at..][..dim];
            *dq_terms += size * size * dot(k, k);
            dk_terms[s][at / dim] += size * size * dot(q, q);
        }
    }
    dq_terms
        .iter_mut()
        .chain(dk_terms.iter_mut().flatten())
        .for_each(|term| *term = term.sqrt());
    Ok(Expected {
        results: expected,
        dq_terms,
        dk_terms,
    })
}
