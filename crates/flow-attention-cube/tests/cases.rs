//! The cases's reference against finite differences and against itself.

use flow_attention_cube::Element;
use flow_attention_cube::cases::{Case, Data, Layout, MaskKind, Operand, cases, reference};

/// `sum(o · d_o)`, the function whose gradients backward gives.
fn loss(case: &Case, data: &Data) -> f64 {
    let expected = reference(case, data).unwrap().results;
    expected
        .o
        .iter()
        .zip(&data.d_o.values)
        .map(|(o, d_o)| o * d_o)
        .sum()
}

/// The derivative by each value of the operand that `which` picks.
fn differences(case: &Case, data: &Data, which: fn(&mut Data) -> &mut Operand) -> Vec<f64> {
    let step = 1e-5;
    let mut data = data.clone();
    (0..which(&mut data).values.len())
        .map(|i| {
            let mut at = |change: f64| {
                which(&mut data).values[i] += change;
                let loss = loss(case, &data);
                which(&mut data).values[i] -= change;
                loss
            };
            (at(step) - at(-step)) / (2.0 * step)
        })
        .collect()
}

#[test]
fn the_gradients_of_the_reference_are_those_of_its_result() {
    for mask in [
        MaskKind::Full,
        MaskKind::Causal,
        MaskKind::Documents,
        MaskKind::BlockSparse,
    ] {
        let case = Case {
            heads: 4,
            kv_heads: 2,
            kv_segments: [4, 3],
            mask,
            scale: 0.7,
            ..Case::new(5, 0, 3)
        };
        let data = Data::new(&case, 11);
        let expected = reference(&case, &data).unwrap().results;
        type Place = fn(&mut Data) -> &mut Operand;
        let pairs: [(&[f64], Place); 5] = [
            (&expected.dq, |data| &mut data.q),
            (&expected.dk[0], |data| &mut data.k[0]),
            (&expected.dk[1], |data| &mut data.k[1]),
            (&expected.dv[0], |data| &mut data.v[0]),
            (&expected.dv[1], |data| &mut data.v[1]),
        ];
        for (gradient, which) in pairs {
            for (a, b) in gradient.iter().zip(differences(&case, &data, which)) {
                assert!((a - b).abs() < 1e-8 * (1.0 + a.abs()), "{mask:?}: {a} and {b}");
            }
        }
    }
}

#[test]
fn log_sums_are_those_of_the_scores() {
    let case = Case {
        batch: 1,
        heads: 1,
        kv_heads: 1,
        ..Case::new(2, 3, 4)
    };
    let data = Data::new(&case, 5);
    let expected = reference(&case, &data).unwrap().results;
    for query in 0..2 {
        let sum: f64 = (0..3)
            .map(|key| {
                let pairs = (0..4).map(|d| data.q.values[query * 4 + d] * data.k[0].values[key * 4 + d]);
                (pairs.sum::<f64>() * case.scale).exp()
            })
            .sum();
        assert!((expected.lse[query] - sum.ln()).abs() < 1e-12);
    }
}

#[test]
fn a_query_that_may_attend_to_nothing_gets_zero_and_plus_infinity() {
    let case = Case {
        mask: MaskKind::Causal,
        ..Case::new(7, 3, 2)
    };
    let expected = reference(&case, &Data::new(&case, 1)).unwrap().results;
    assert!(expected.o[..8].iter().all(|o| *o == 0.0));
    assert!(expected.lse[..4].iter().all(|lse| *lse == f64::INFINITY));
    assert!(expected.lse[4].is_finite());
}

#[test]
fn every_case_has_a_mask_and_every_layout_keeps_its_values() {
    for case in cases(Element::Bf16) {
        case.mask.mask(case.sizes()).unwrap().bind(case.sizes()).unwrap();
        let small = Case {
            batch: 2,
            queries: 3,
            kv_segments: [2, 1],
            head_dim: 8,
            ..case
        };
        let q = Data::new(&small, 1).q;
        let places: std::collections::BTreeSet<usize> = q.places().collect();
        assert_eq!(
            places.len(),
            q.values.len(),
            "{:?}: no two values in one place",
            case.layout
        );
        assert_eq!(q.read(&q.memory()).unwrap(), q.values);
    }
}

#[test]
fn a_result_outside_of_a_sliced_tensor_is_noticed() {
    let case = Case {
        layout: Layout::Sliced,
        ..Case::new(3, 3, 8)
    };
    let q = Data::new(&case, 1).q;
    let mut memory = q.memory();
    memory[9] = 0.0;
    assert!(q.read(&memory).unwrap_err().contains("element 9"));
}

#[test]
fn errors_above_the_allowed_ones_are_noticed() {
    let case = Case::new(5, 6, 4);
    let expected = reference(&case, &Data::new(&case, 1)).unwrap();
    assert!(expected.compare(&case, &expected.results).holds());
    let mut wrong = expected.results.clone();
    wrong.dk[0][3] *= 1.0 + 1e-3;
    assert!(!expected.compare(&case, &wrong).holds());
    wrong = expected.results.clone();
    wrong.o[0] = f64::NAN;
    assert!(!expected.compare(&case, &wrong).holds());
    wrong = expected.results.clone();
    wrong.lse.pop();
    assert!(!expected.compare(&case, &wrong).holds());
}
