//! Linear layers against an f64 reference.

mod support;

use burn::backend::DispatchTensor;
use flow_core::cpu::to_host;
use flow_core::ops::{Compute, LinearWeights, Stash};
use flow_core::{Activation, Kernels, RawTensor};
use flow_kernels::CpuKernels;
use std::sync::Mutex;
use support::{Operand, bits, check, check_threads, operand, run};

const SCALE: f32 = 1.5;

#[derive(Clone, Copy)]
struct Case {
    rows: usize,
    inputs: usize,
    outputs: usize,
    bias: bool,
    rank: Option<usize>,
    activation: Activation,
}

impl Case {
    fn operands(&self) -> Vec<Operand> {
        let mut operands = vec![
            operand(1, &[self.rows, self.inputs]),
            operand(2, &[self.outputs, self.inputs]),
        ];
        operands.extend(self.bias.then(|| operand(3, &[self.outputs])));
        if let Some(rank) = self.rank {
            operands.extend([
                operand(4, &[rank, self.inputs]),
                operand(5, &[self.outputs, rank]),
            ]);
        }
        operands
    }

    fn weights(&self, inputs: &[DispatchTensor]) -> LinearWeights {
        let last = inputs.len() - 1;
        LinearWeights {
            low_precision: None,
            weight: inputs[1].clone(),
            bias: self.bias.then(|| inputs[2].clone()),
            adapter: self
                .rank
                .map(|_| (inputs[last - 1].clone(), inputs[last].clone(), SCALE)),
        }
    }

    fn kernel(&self, stash: &dyn Stash, inputs: &[DispatchTensor]) -> DispatchTensor {
        CpuKernels::default()
            .ops()
            .model
            .linear(stash, &inputs[0], &self.weights(inputs), self.activation)
    }

    fn reference(&self, operands: &[Vec<f64>]) -> Vec<f64> {
        let Case {
            rows,
            inputs,
            outputs,
            ..
        } = *self;
        let last = operands.len() - 1;
        let mut y = Vec::new();
        for row in 0..rows {
            let x = &operands[0][row * inputs..][..inputs];
            let dot = |w: &[f64]| x.iter().zip(w).map(|(x, w)| x * w).sum::<f64>();
            for output in 0..outputs {
                let mut value = dot(&operands[1][output * inputs..][..inputs]);
                if self.bias {
                    value += operands[2][output];
                }
                if let Some(rank) = self.rank {
                    for channel in 0..rank {
                        let reduced = dot(&operands[last - 1][channel * inputs..][..inputs]);
                        value += f64::from(SCALE) * reduced * operands[last][output * rank + channel];
                    }
                }
                y.push(match self.activation {
                    Activation::None => value,
                    Activation::Silu => support::silu(value),
                    Activation::GeluTanh => support::gelu(value),
                });
            }
        }
        y
    }

    fn check(&self) {
        check(&self.operands(), &|values| self.reference(values), &|inputs| {
            self.kernel(&Compute, inputs)
        });
    }
}

const PLAIN: Case = Case {
    rows: 7,
    inputs: 13,
    outputs: 5,
    bias: true,
    rank: None,
    activation: Activation::None,
};

#[test]
fn output_and_gradients_agree_with_f64_at_awkward_sizes() {
    for (rows, inputs, outputs) in [
        (1, 1, 1),
        (1, 13, 5),
        (7, 16, 24),
        (129, 5, 7),
        (3, 2, 40),
        (21, 24, 1),
    ] {
        Case {
            rows,
            inputs,
            outputs,
            ..PLAIN
        }
        .check();
    }
}

#[test]
fn bias_is_optional() {
    Case { bias: false, ..PLAIN }.check();
}

#[test]
fn activations_after_the_layer_are_differentiated() {
    for activation in [Activation::Silu, Activation::GeluTanh] {
        Case { activation, ..PLAIN }.check();
        Case {
            activation,
            bias: false,
            rows: 129,
            inputs: 3,
            outputs: 4,
            ..PLAIN
        }
        .check();
    }
}

#[test]
fn adapters_are_added_and_differentiated() {
    for activation in [Activation::None, Activation::GeluTanh] {
        Case {
            rank: Some(2),
            activation,
            ..PLAIN
        }
        .check();
        Case {
            rank: Some(3),
            activation,
            bias: false,
            ..PLAIN
        }
        .check();
    }
}

#[test]
fn an_adapter_whose_second_factor_is_zero_changes_no_bit() {
    let case = Case {
        rows: 50,
        inputs: 24,
        outputs: 16,
        rank: Some(4),
        ..PLAIN
    };
    let mut operands = case.operands();
    operands[4].values.fill(0.0);
    let inputs: Vec<RawTensor> = operands.iter().map(Operand::plain).collect();
    let base = Case { rank: None, ..case };
    assert_eq!(
        bits(&to_host(&case.kernel(&Compute, &inputs))),
        bits(&to_host(&base.kernel(&Compute, &inputs[..3])))
    );
}

#[test]
fn one_thread_and_three_give_the_same_bits() {
    for (rows, inputs, outputs) in [(700, 64, 192), (513, 256, 64), (300, 600, 48)] {
        let case = Case {
            rows,
            inputs,
            outputs,
            rank: Some(8),
            activation: Activation::GeluTanh,
            ..PLAIN
        };
        check_threads(&case.operands(), &|inputs| case.kernel(&Compute, inputs));
    }
}

#[test]
fn a_row_has_the_same_bits_in_a_batch_of_any_size() {
    for (inputs, outputs) in [
        (64, 192),
        (13, 5),
        (600, 16),
        (768, 64),
        (640, 200),
        (16, 1),
        (5, 64),
        (1, 3),
        (2, 9),
    ] {
        let case = Case {
            rows: 300,
            inputs,
            outputs,
            rank: Some(3),
            activation: Activation::Silu,
            ..PLAIN
        };
        let operands = case.operands();
        let all = vec![true; operands.len()];
        let seed = operand(7, &[300, outputs]);
        let (whole, gradients) = run(&operands, &all, &|inputs| case.kernel(&Compute, inputs), &seed);
        let whole_dx = gradients[0].as_ref().expect("tracked").clone();
        for (start, rows) in [
            (0, 1),
            (299, 1),
            (17, 2),
            (100, 7),
            (64, 64),
            (65, 65),
            (150, 129),
        ] {
            let part = Case { rows, ..case };
            let mut operands = operands.clone();
            operands[0] = Operand {
                values: operands[0].values[start * inputs..][..rows * inputs].to_vec(),
                shape: vec![rows, inputs],
            };
            let seed = Operand {
                values: seed.values[start * outputs..][..rows * outputs].to_vec(),
                shape: vec![rows, outputs],
            };
            let (found, gradients) = run(&operands, &all, &|inputs| part.kernel(&Compute, inputs), &seed);
            let at = format!("rows {start}+{rows} of [300, {inputs}] by [{inputs}, {outputs}]");
            assert_eq!(
                bits(&found),
                bits(&whole[start * outputs..][..rows * outputs]),
                "{at}"
            );
            let dx = gradients[0].as_ref().expect("tracked");
            assert_eq!(
                bits(dx),
                bits(&whole_dx[start * inputs..][..rows * inputs]),
                "gradient of {at}"
            );
        }
    }
}

/// Keeps what a first run makes and gives it to later runs.
#[derive(Debug, Default)]
struct Kept(Mutex<Vec<(&'static str, Vec<RawTensor>)>>);

impl Stash for Kept {
    fn through(&self, name: &'static str, compute: &mut dyn FnMut() -> Vec<RawTensor>) -> Vec<RawTensor> {
        let mut kept = self.0.lock().expect("not poisoned");
        if kept.is_empty() {
            kept.push((name, compute()));
        }
        kept[0].1.clone()
    }
}

#[test]
fn a_result_kept_from_a_plain_run_serves_a_tracked_run_with_the_same_bits() {
    for activation in [Activation::None, Activation::Silu, Activation::GeluTanh] {
        let case = Case {
            activation,
            rank: Some(2),
            ..PLAIN
        };
        let (operands, seed) = (case.operands(), operand(8, &[case.rows, case.outputs]));
        let stash = Kept::default();
        let inputs: Vec<RawTensor> = operands.iter().map(Operand::plain).collect();
        let first = to_host(&case.kernel(&stash, &inputs));
        {
            let kept = stash.0.lock().expect("not poisoned");
            assert_eq!((kept[0].0, kept[0].1.len()), ("linear", 1), "{activation:?}");
        }
        let all = vec![true; operands.len()];
        let replayed = run(&operands, &all, &|inputs| case.kernel(&stash, inputs), &seed);
        let fresh = run(&operands, &all, &|inputs| case.kernel(&Compute, inputs), &seed);
        assert_eq!(bits(&first), bits(&fresh.0), "{activation:?}");
        assert_eq!(replayed, fresh, "{activation:?}");
    }
}

#[test]
fn leading_axes_are_kept() {
    let case = Case { rows: 6, ..PLAIN };
    let mut operands = case.operands();
    operands[0].shape = vec![2, 3, 13];
    let inputs: Vec<RawTensor> = operands.iter().map(Operand::plain).collect();
    let output = case.kernel(&Compute, &inputs);
    assert_eq!(
        burn::backend::TensorMetadata::shape(&output).to_vec(),
        vec![2, 3, 5]
    );
}

#[test]
fn no_rows_give_no_rows_and_zero_gradients() {
    let case = Case {
        rows: 0,
        rank: Some(2),
        ..PLAIN
    };
    let operands = case.operands();
    let all = vec![true; operands.len()];
    let seed = Operand {
        values: Vec::new(),
        shape: vec![0, 5],
    };
    let (output, gradients) = run(&operands, &all, &|inputs| case.kernel(&Compute, inputs), &seed);
    assert!(output.is_empty());
    for gradient in &gradients[1..] {
        assert!(
            gradient
                .as_ref()
                .expect("tracked")
                .iter()
                .all(|value| *value == 0.0)
        );
    }
}
