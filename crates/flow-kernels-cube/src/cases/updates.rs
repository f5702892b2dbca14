//! Cases of the optimizer's kernels.

use super::checker::{Checker, Values};
use crate::adamw::{AdamW, AdamWParam, MasterWeight, Rounding};
use crate::optimizer::{accumulate, average, sums_of_squares};
use crate::{Buffer, Element};

pub(super) fn check(checker: &mut Checker<'_>) {
    squares(checker);
    for length in [1, 7, 333, 4096, 50_001] {
        sums(checker, length);
    }
    // f16 has not the range of second moments.
    let moments = match checker.element() {
        Element::Bf16 => Element::Bf16,
        _ => Element::F32,
    };
    adamw(checker, &[50_001], moments);
    // More than one launch takes, of several widths, and one that is empty.
    let many: Vec<usize> = (0..45)
        .map(|index| [1, 7, 0, 333, 4096, 256, 1000][index % 7] + index / 7)
        .collect();
    adamw(checker, &many, moments);
}

fn squares(checker: &mut Checker<'_>) {
    let element = checker.element();
    // More than one launch takes, of several widths.
    let lengths = (0..40).map(|index| [1, 7, 4096, 4097, 20_000][index % 5] + 4 * (index / 5));
    let tensors: Vec<Values> = lengths.map(|length| checker.normal(length)).collect();
    let want: Vec<f64> = tensors
        .iter()
        .map(|tensor| tensor.values.iter().map(|x| x * x).sum())
        .collect();
    let client = checker.client().clone();
    let buffers: Vec<Buffer> = tensors.iter().map(|tensor| checker.upload(tensor)).collect();
    let all: Vec<&Buffer> = buffers.iter().collect();
    let none = || vec![f64::NAN; all.len()];
    let [first, second] = [(), ()].map(|()| sums_of_squares(&client, &all).unwrap_or_else(none));
    checker.same("sums of squares, twice", &first, &second);
    checker.close("sums of squares", &first, &want, Element::F32, 4096);
    let alone: Vec<f64> = buffers
        .iter()
        .flat_map(|one| sums_of_squares(&client, &[one]).unwrap_or_else(|| vec![f64::NAN]))
        .collect();
    checker.same(
        &format!("sums of squares of {} tensors, one by one", element.name()),
        &alone,
        &first,
    );
}

fn sums(checker: &mut Checker<'_>, length: usize) {
    let client = checker.client().clone();
    let base = checker.draw(length, Element::F32, 1.0, 0.0);
    let value = checker.normal(length);
    let (sum, mean) = (checker.upload(&base), checker.upload(&base));
    let on_value = checker.upload(&value);
    let decay = Buffer::upload(&client, &[0.75], Element::F32);
    let done = accumulate(&client, &sum, &on_value);
    checker.accept("accumulate", done);
    let done = average(&client, &[(&mean, &on_value)], &decay);
    checker.accept("average", done);
    let pairs = || base.values.iter().zip(&value.values);
    let want_sum: Vec<f64> = pairs().map(|(a, g)| a + g).collect();
    let want_mean: Vec<f64> = pairs().map(|(a, v)| 0.75 * a + 0.25 * v).collect();
    let (sum, mean) = (checker.download(&sum), checker.download(&mean));
    checker.close(&format!("accumulate {length}"), &sum, &want_sum, Element::F32, 1);
    checker.close(&format!("average {length}"), &mean, &want_mean, Element::F32, 1);
}

/// Weights of these lengths in one call, each against the formula.
fn adamw(checker: &mut Checker<'_>, lengths: &[usize], moments: Element) {
    let client = checker.client().clone();
    let (rate, beta1, beta2, epsilon, scale) = (1e-2f32, 0.9f32, 0.999f32, 1e-8f32, 0.5f32);
    let corrections = [1.0 - beta1.powi(3), 1.0 - beta2.powi(3)];
    let varying = [rate, corrections[0], corrections[1], scale].map(f64::from);
    let varying = Buffer::upload(&client, &varying, Element::F32);
    let copied = checker.element() == Element::Bf16;
    let cases: Vec<Case> = lengths
        .iter()
        .enumerate()
        .map(|(index, length)| Case::new(checker, *length, moments, copied, index))
        .collect();
    let step = AdamW {
        betas: (beta1, beta2),
        epsilon,
        varying: &varying,
        rounding: Rounding::default(),
    };
    let all: Vec<AdamWParam<'_>> = cases.iter().map(Case::updated).collect();
    let done = step.update(&client, &all);
    checker.accept("AdamW", done);
    for case in cases {
        let length = case.values[0].values.len();
        let name = format!("AdamW of {length} with moments in {}", moments.name());
        let [weight, gradient, first, second] = case.values;
        let (mut want_w, mut want_m, mut want_v) = (Vec::new(), Vec::new(), Vec::new());
        let [rate, beta1, beta2, epsilon, decay, scale] =
            [rate, beta1, beta2, epsilon, case.weight_decay, scale].map(f64::from);
        let [correction1, correction2] = corrections.map(f64::from);
        for at in 0..length {
            let g = gradient.values[at] * scale;
            let m = beta1 * first.values[at] + (1.0 - beta1) * g;
            let v = beta2 * second.values[at] + (1.0 - beta2) * g * g;
            let change = rate / correction1 * m / (v.sqrt() / correction2.sqrt() + epsilon);
            want_w.push(weight.values[at] * (1.0 - rate * decay) - change);
            want_m.push(m);
            want_v.push(v);
        }
        let [w, _, m, v] = case.on.map(|buffer| checker.download(&buffer));
        checker.close(&format!("{name}: weight"), &w, &want_w, Element::F32, 1);
        checker.close(&format!("{name}: first"), &m, &want_m, moments, 1);
        checker.close(&format!("{name}: second"), &v, &want_v, moments, 1);
        if let Some(copy) = case.copy {
            let copy = checker.download(&copy);
            checker.same(
                &format!("{name}: copy"),
                &copy,
                &Element::Bf16.decode(&Element::Bf16.encode(&w)),
            );
        }
    }
}

/// A weight, its gradient and its moments.
struct Case {
    values: [Values; 4],
    on: [Buffer; 4],
    copy: Option<Buffer>,
    weight_decay: f32,
}

impl Case {
    fn new(checker: &mut Checker<'_>, length: usize, moments: Element, copied: bool, index: usize) -> Self {
        let weight = checker.draw(length, Element::F32, 1.0, 0.0);
        let gradient = checker.normal(length);
        let first = checker.draw(length, moments, 0.1, 0.0);
        let mut second = checker.draw(length, moments, 0.1, 0.0);
        second
            .values
            .iter_mut()
            .for_each(|x| *x = moments.decode(&moments.encode(&[*x * *x]))[0]);
        let values = [weight, gradient, first, second];
        Self {
            on: values.each_ref().map(|values| checker.upload(values)),
            values,
            // Weights with and without one take different launches.
            copy: (copied && index % 5 != 3).then(|| checker.room(length, Element::Bf16)),
            weight_decay: 0.1 * (index % 3) as f32,
        }
    }

    fn updated(&self) -> AdamWParam<'_> {
        let [weight, gradient, first, second] = &self.on;
        AdamWParam {
            weight,
            gradient,
            first,
            second,
            beside: self
                .copy
                .as_ref()
                .map_or(MasterWeight::Nothing, MasterWeight::Copy),
            weight_decay: self.weight_decay,
        }
    }
}
