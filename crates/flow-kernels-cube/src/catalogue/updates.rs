//! Cases of the optimizer's kernels.

use super::checker::Checker;
use crate::optimizer::{AdamW, Updated, accumulate, average, sums_of_squares};
use crate::{Buffer, Element};

pub(super) fn check(checker: &mut Checker<'_>) {
    squares(checker);
    for length in [1, 7, 333, 4096, 50_001] {
        sums(checker, length);
        // f16 has not the range of second moments.
        let moments = match checker.element() {
            Element::Bf16 => Element::Bf16,
            _ => Element::F32,
        };
        adamw(checker, length, moments);
    }
}

fn squares(checker: &mut Checker<'_>) {
    let element = checker.element();
    let tensors = [1, 7, 4096, 4097, 20_000].map(|length| checker.normal(length));
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
    let done = average(&client, &mean, &on_value, &decay);
    checker.accept("average", done);
    let pairs = || base.values.iter().zip(&value.values);
    let want_sum: Vec<f64> = pairs().map(|(a, g)| a + g).collect();
    let want_mean: Vec<f64> = pairs().map(|(a, v)| 0.75 * a + 0.25 * v).collect();
    let (sum, mean) = (checker.download(&sum), checker.download(&mean));
    checker.close(&format!("accumulate {length}"), &sum, &want_sum, Element::F32, 1);
    checker.close(&format!("average {length}"), &mean, &want_mean, Element::F32, 1);
}

fn adamw(checker: &mut Checker<'_>, length: usize, moments: Element) {
    let name = format!("AdamW of {length} with moments in {}", moments.name());
    let client = checker.client().clone();
    let weight = checker.draw(length, Element::F32, 1.0, 0.0);
    let gradient = checker.normal(length);
    let first = checker.draw(length, moments, 0.1, 0.0);
    let mut second = checker.draw(length, moments, 0.1, 0.0);
    second
        .values
        .iter_mut()
        .for_each(|x| *x = moments.decode(&moments.encode(&[*x * *x]))[0]);
    let (rate, beta1, beta2, epsilon, decay, scale) = (1e-2f32, 0.9f32, 0.999f32, 1e-8f32, 0.1f32, 0.5f32);
    let corrections = [1.0 - beta1.powi(3), 1.0 - beta2.powi(3)];
    let varying = [rate, corrections[0], corrections[1], scale].map(f64::from);
    let varying = Buffer::upload(&client, &varying, Element::F32);
    let copied = checker.element() == Element::Bf16;
    let on = [&weight, &gradient, &first, &second].map(|values| checker.upload(values));
    let copy = copied.then(|| checker.room(length, Element::Bf16));
    let step = AdamW {
        betas: (beta1, beta2),
        epsilon,
        weight_decay: decay,
        varying: &varying,
    };
    let of = Updated {
        weight: &on[0],
        gradient: &on[1],
        first: &on[2],
        second: &on[3],
        copy: copy.as_ref(),
    };
    let done = step.update(&client, of);
    checker.accept(&name, done);
    let (mut want_w, mut want_m, mut want_v) = (Vec::new(), Vec::new(), Vec::new());
    let [rate, beta1, beta2, epsilon, decay, scale] =
        [rate, beta1, beta2, epsilon, decay, scale].map(f64::from);
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
    let [w, _, m, v] = on.map(|buffer| checker.download(&buffer));
    checker.close(&format!("{name}: weight"), &w, &want_w, Element::F32, 1);
    checker.close(&format!("{name}: first"), &m, &want_m, moments, 1);
    checker.close(&format!("{name}: second"), &v, &want_v, moments, 1);
    if let Some(copy) = copy {
        let copy = checker.download(&copy);
        checker.same(
            &format!("{name}: copy"),
            &copy,
            &Element::Bf16.decode(&Element::Bf16.encode(&w)),
        );
    }
}
