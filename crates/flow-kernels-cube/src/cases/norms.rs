//! Cases of layer norm and RMS norm.

use super::checker::{Checker, Values};
use super::reference::*;
use crate::modulated_layer_norm::{ModulatedNorm, NormGradients};
use crate::rms_norm::{RmsGradients, RmsNorm, RotaryAfterNorm};
use crate::{Buffer, Element};

/// Samples, tokens and channels.
const SIZES: [[usize; 3]; 7] = [
    [1, 1, 1],
    [3, 13, 7],
    [1, 77, 72],
    [3, 13, 64],
    [2, 5, 333],
    [2, 40, 1152],
    [1, 2, 2100],
];
const EPSILON: f32 = 1e-6;

pub(super) fn check(checker: &mut Checker<'_>) {
    for size in SIZES {
        modulated(checker, size, 0.0, 1.0);
        rms(checker, size, false);
        rms(checker, size, true);
    }
    // Rows far from zero: deviations lose the bits of the mean, no more.
    modulated(checker, [1, 4, 256], 30.0, 1.0);
    // With a weight and a bias: more rows than one piece.
    modulated(checker, [1, 150, 72], 0.0, 0.0);
    for [batch, tokens, heads, channels] in [[3, 5, 2, 64], [1, 7, 3, 6], [2, 4, 1, 128], [1, 3, 16, 72]] {
        turned(checker, [batch, tokens, heads, channels], 1);
        turned(checker, [batch, tokens, heads, channels], heads);
    }
}

fn modulated(checker: &mut Checker<'_>, [batch, tokens, channels]: [usize; 3], offset: f64, unit: f32) {
    let name = format!("layer norm of {batch} x {tokens} x {channels} around {offset}, scale plus {unit}");
    let element = checker.element();
    let chunks = 3;
    let x = checker.draw(batch * tokens * channels, element, 1.5, offset);
    let modulation = checker.normal(batch * chunks * channels);
    let gradient = checker.normal(batch * tokens * channels);
    let run = |checker: &mut Checker<'_>, samples: std::ops::Range<usize>| {
        let part = |values: &Values| values.of(&samples, batch);
        let client = checker.client().clone();
        let call = ModulatedNorm {
            batch: samples.len(),
            tokens,
            channels,
            chunks,
            shift: 2,
            scale: 0,
            unit,
            epsilon: EPSILON,
        };
        let rows = samples.len() * tokens;
        let [x, modulation, gradient] =
            [&x, &modulation, &gradient].map(|values| checker.upload(&part(values)));
        let [y, dx, dx_alone, dx_and_more] = [0; 4].map(|_| checker.room(rows * channels, element));
        let dmodulation = checker.room(modulation.length, element);
        let statistics = checker.room(rows * 2, Element::F32);
        let done = call.forward(&client, &x, &modulation, &y, &statistics);
        checker.accept(&name, done);
        let backward = NormGradients {
            x: &x,
            modulation: &modulation,
            statistics: &statistics,
            gradient: &gradient,
            added: None,
            dx: &dx,
            dmodulation: Some(&dmodulation),
        };
        let all = call.backward(&client, backward);
        checker.accept(&name, all);
        let mut only_x = |added: Option<&Buffer>, to: &Buffer| {
            let done = call.backward(
                &client,
                NormGradients {
                    added,
                    dx: to,
                    dmodulation: None,
                    ..backward
                },
            );
            checker.accept(&name, done);
        };
        only_x(None, &dx_alone);
        only_x(Some(&gradient), &dx_and_more);
        let dx = checker.download(&dx);
        let again = checker.download(&dx_alone);
        checker.same(&format!("{name}: dx without dmodulation"), &dx, &again);
        // The sum of two numbers of the type, rounded once.
        let uploaded = checker.download(&gradient);
        let sums = dx.iter().zip(&uploaded);
        let sums: Vec<f64> = sums
            .map(|(dx, added)| f64::from(*dx as f32 + *added as f32))
            .collect();
        let sums = element.decode(&element.encode(&sums));
        let with_more = checker.download(&dx_and_more);
        checker.same(&format!("{name}: dx and another gradient"), &sums, &with_more);
        vec![checker.download(&y), dx, checker.download(&dmodulation)]
    };
    let got = checker.samples(&name, batch, run);
    let epsilon = f64::from(EPSILON);
    let (mut y, mut dx) = (Vec::new(), Vec::new());
    let mut dmodulation = vec![0.0; batch * chunks * channels];
    let rows = x.values.chunks(channels).zip(gradient.values.chunks(channels));
    for (row, (x, gradient)) in rows.enumerate() {
        let chunk = |chunk: usize| (row / tokens * chunks + chunk) * channels;
        let [scale, shift] = [0, 2].map(|number| &modulation.values[chunk(number)..][..channels]);
        let scale: Vec<f64> = scale.iter().map(|scale| scale + f64::from(unit) - 1.0).collect();
        let scale = &scale[..];
        y.extend(norm_row(x, shift, scale, epsilon));
        let (of_x, of_scale) = norm_row_backward(x, scale, gradient, epsilon);
        dx.extend(of_x);
        add(&mut dmodulation[chunk(0)..], &of_scale);
        add(&mut dmodulation[chunk(2)..], gradient);
    }
    // The mean's own rounding is seen in every deviation.
    let lost = 1.0 + offset.abs();
    let terms = ((channels as f64) * lost * lost) as usize;
    checker.close(&format!("{name}: y"), &got[0], &y, element, terms);
    checker.close(&format!("{name}: dx"), &got[1], &dx, element, terms);
    let terms = ((tokens as f64) * lost * lost) as usize;
    checker.close(
        &format!("{name}: dmodulation"),
        &got[2],
        &dmodulation,
        element,
        terms,
    );
}

fn add(sum: &mut [f64], values: &[f64]) {
    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

fn rms(checker: &mut Checker<'_>, [batch, tokens, channels]: [usize; 3], weighted: bool) {
    let name = format!("RMS norm of {batch} x {tokens} x {channels}, weight {weighted}");
    let element = checker.element();
    let x = checker.normal(batch * tokens * channels);
    let gradient = checker.normal(batch * tokens * channels);
    // Weights may be f32 whatever the rest is.
    let weight = checker.draw(channels, Element::F32, 0.5, 1.0);
    let on_device = checker.upload(&weight);
    let device_weight = weighted.then_some(&on_device);
    let run = |checker: &mut Checker<'_>, samples: std::ops::Range<usize>| {
        let rows = samples.len() * tokens;
        let call = RmsNorm {
            rows,
            channels,
            epsilon: EPSILON,
        };
        let client = checker.client().clone();
        let [x, gradient] = [&x, &gradient].map(|values| checker.upload(&values.of(&samples, batch)));
        let [y, dx] = [0; 2].map(|_| checker.room(rows * channels, element));
        let reciprocals = checker.room(rows, Element::F32);
        let done = call.forward(&client, &x, device_weight, None, &y, &reciprocals);
        checker.accept(&name, done);
        let backward = RmsGradients {
            x: &x,
            weight: device_weight,
            turn: None,
            reciprocals: &reciprocals,
            gradient: &gradient,
            dx: Some(&dx),
            dweight: None,
        };
        let done = call.backward(&client, backward);
        checker.accept(&name, done);
        vec![checker.download(&y), checker.download(&dx)]
    };
    let got = checker.samples(&name, batch, run);
    let of_weight = weighted.then(|| {
        let call = RmsNorm {
            rows: batch * tokens,
            channels,
            epsilon: EPSILON,
        };
        let client = checker.client().clone();
        let [x, gradient] = [&x, &gradient].map(|values| checker.upload(values));
        let reciprocals = checker.room(batch * tokens, Element::F32);
        let y = checker.room(x.length, element);
        let done = call.forward(&client, &x, device_weight, None, &y, &reciprocals);
        checker.accept(&name, done);
        let once = |checker: &mut Checker<'_>| {
            let dweight = checker.room(channels, Element::F32);
            let backward = RmsGradients {
                x: &x,
                weight: device_weight,
                turn: None,
                reciprocals: &reciprocals,
                gradient: &gradient,
                dx: None,
                dweight: Some(&dweight),
            };
            let done = call.backward(&client, backward);
            checker.accept(&name, done);
            checker.download(&dweight)
        };
        let (first, second) = (once(checker), once(checker));
        checker.same(&format!("{name}: dweight, twice"), &first, &second);
        first
    });
    let epsilon = f64::from(EPSILON);
    let values = weighted.then_some(&weight.values[..]);
    let (mut y, mut dx, mut dweight) = (Vec::new(), Vec::new(), vec![0.0; channels]);
    for (x, gradient) in x.values.chunks(channels).zip(gradient.values.chunks(channels)) {
        y.extend(rms_row(x, values, epsilon));
        let (of_x, of_weight) = rms_row_backward(x, values, gradient, epsilon);
        dx.extend(of_x);
        add(&mut dweight, &of_weight);
    }
    checker.close(&format!("{name}: y"), &got[0], &y, element, channels);
    // Of one channel nearly all of the gradient cancels.
    let rows = x.values.chunks(channels);
    let smallest = rows.map(|x| x.iter().map(|x| x * x).sum::<f64>() / channels as f64);
    let smallest = smallest.fold(f64::INFINITY, f64::min).sqrt();
    let size = gradient.values.iter().fold(0.0f64, |most, x| most.max(x.abs())) / smallest;
    checker.close_beside(&format!("{name}: dx"), &got[1], &dx, element, channels, size);
    if let Some(got) = of_weight {
        checker.close(
            &format!("{name}: dweight"),
            &got,
            &dweight,
            Element::F32,
            batch * tokens,
        );
    }
}

/// RMS norm of `together` heads at once, with a rotary embedding after it.
fn turned(checker: &mut Checker<'_>, [batch, tokens, heads, head_dim]: [usize; 4], together: usize) {
    let name = format!("RMS norm, turned, of {batch} x {tokens} x {heads} x {head_dim}, {together} at once");
    let element = checker.element();
    let channels = together * head_dim;
    let rows = batch * tokens * heads / together;
    let x = checker.normal(rows * channels);
    let gradient = checker.normal(rows * channels);
    let weight = checker.draw(channels, element, 0.5, 1.0);
    let angles = checker.draw(tokens * head_dim / 2, Element::F32, 3.0, 0.0);
    let table = |of: fn(f64) -> f64| Values {
        values: angles
            .values
            .iter()
            .map(|angle| f64::from(of(*angle) as f32))
            .collect(),
        element: Element::F32,
    };
    let (cos, sin) = (table(f64::cos), table(f64::sin));
    let client = checker.client().clone();
    let [on_x, on_gradient, on_weight, on_cos, on_sin] =
        [&x, &gradient, &weight, &cos, &sin].map(|values| checker.upload(values));
    let turn = RotaryAfterNorm {
        tokens,
        heads,
        head_dim,
        cos: &on_cos,
        sin: &on_sin,
    };
    let call = RmsNorm {
        rows,
        channels,
        epsilon: EPSILON,
    };
    let [y, dx] = [0; 2].map(|_| checker.room(rows * channels, element));
    let reciprocals = checker.room(rows, Element::F32);
    let dweight: Buffer = checker.room(channels, Element::F32);
    let done = call.forward(&client, &on_x, Some(&on_weight), Some(turn), &y, &reciprocals);
    checker.accept(&name, done);
    let backward = RmsGradients {
        x: &on_x,
        weight: Some(&on_weight),
        turn: Some(turn),
        reciprocals: &reciprocals,
        gradient: &on_gradient,
        dx: Some(&dx),
        dweight: Some(&dweight),
    };
    let done = call.backward(&client, backward);
    checker.accept(&name, done);
    let epsilon = f64::from(EPSILON);
    let (mut want_y, mut want_dx, mut want_dweight) = (Vec::new(), Vec::new(), vec![0.0; channels]);
    let each = x.values.chunks(channels).zip(gradient.values.chunks(channels));
    for (row, (x, gradient)) in each.enumerate() {
        let at = row / (heads / together) % tokens * head_dim / 2;
        let of_heads = |row: &[f64], direction: f64| -> Vec<f64> {
            let (cos, sin) = (
                &cos.values[at..][..head_dim / 2],
                &sin.values[at..][..head_dim / 2],
            );
            let turned = |head| rotate_row(head, cos, sin, direction);
            row.chunks(head_dim).flat_map(turned).collect()
        };
        want_y.extend(of_heads(&rms_row(x, Some(&weight.values), epsilon), 1.0));
        let back = of_heads(gradient, -1.0);
        let (of_x, of_weight) = rms_row_backward(x, Some(&weight.values), &back, epsilon);
        want_dx.extend(of_x);
        add(&mut want_dweight, &of_weight);
    }
    let got = [y, dx, dweight].map(|buffer| checker.download(&buffer));
    checker.close(&format!("{name}: y"), &got[0], &want_y, element, channels);
    checker.close(&format!("{name}: dx"), &got[1], &want_dx, element, channels);
    checker.close(
        &format!("{name}: dweight"),
        &got[2],
        &want_dweight,
        Element::F32,
        rows,
    );
}
