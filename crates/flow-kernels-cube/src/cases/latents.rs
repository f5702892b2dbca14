//! Cases of SDE steps, their log-probabilities, and distances.

use super::checker::{Checker, Values};
use crate::Element;
use crate::sde::{Latents, Noise, Outcome, Step};
use std::ops::Range;

pub(super) fn check(checker: &mut Checker<'_>) {
    for [rows, values] in [[1, 1], [3, 7], [3, 333], [2, 4096], [3, 4100], [2, 30_001]] {
        steps(checker, rows, values);
        distances(checker, rows, values);
    }
}

fn steps(checker: &mut Checker<'_>, rows: usize, values: usize) {
    let name = format!("SDE step of {rows} x {values}");
    let element = checker.element();
    let length = rows * values;
    let v = checker.normal(length);
    let [x, noise, dmean] = [0; 3].map(|_| checker.draw(length, Element::F32, 1.0, 0.0));
    let coefficients = checker.draw(rows * 5, Element::F32, 0.3, 0.8);
    let dlog_prob = checker.draw(rows, Element::F32, 1.0, 0.0);
    let run = |checker: &mut Checker<'_>, samples: Range<usize>| {
        let part = |values: &Values| values.of(&samples, rows);
        let client = checker.client().clone();
        let call = Latents {
            rows: samples.len(),
            values,
        };
        let [x, v, noise, coefficients, dlog_prob, dmean] =
            [&x, &v, &noise, &coefficients, &dlog_prob, &dmean].map(|values| checker.upload(&part(values)));
        let step = Step {
            x: &x,
            v: &v,
            coefficients: &coefficients,
        };
        let [x_next, mean, mean_again] = [0; 3].map(|_| checker.room(x.length, Element::F32));
        let [log_prob, log_prob_again] = [0; 2].map(|_| checker.room(samples.len(), Element::F32));
        let outcome = Outcome {
            mean: &mean,
            log_prob: &log_prob,
        };
        let done = call.step(&client, step, Noise::Given(&noise), &x_next, outcome);
        checker.accept(&name, done);
        let outcome = Outcome {
            mean: &mean_again,
            log_prob: &log_prob_again,
        };
        let done = call.log_prob(&client, step, &x_next, outcome);
        checker.accept(&name, done);
        for (one, other) in [(&mean, &mean_again), (&log_prob, &log_prob_again)] {
            let (one, other) = (checker.download(one), checker.download(other));
            checker.same(&format!("{name}: step and log-probability"), &one, &other);
        }
        let mut results = vec![x_next.clone(), mean.clone(), log_prob];
        for (of_log_prob, of_mean) in [(true, true), (true, false), (false, true)] {
            let dv = checker.room(x.length, element);
            let done = call.log_prob_backward(
                &client,
                &mean,
                &x_next,
                &coefficients,
                of_log_prob.then_some(&dlog_prob),
                of_mean.then_some(&dmean),
                &dv,
            );
            checker.accept(&name, done);
            results.push(dv);
        }
        results.iter().map(|result| checker.download(result)).collect()
    };
    let got = checker.samples(&name, rows, run);
    let (mut mean, mut x_next, mut log_prob) = (Vec::new(), Vec::new(), Vec::new());
    let mut dv = [Vec::new(), Vec::new(), Vec::new()];
    for row in 0..rows {
        let [a, b, c, k, offset] = [0, 1, 2, 3, 4].map(|at| coefficients.values[row * 5 + at]);
        let mut squares = 0.0;
        for at in row * values..(row + 1) * values {
            mean.push(a * x.values[at] + b * v.values[at]);
            x_next.push(mean[at] + c * noise.values[at]);
            let distance = x_next[at] - mean[at];
            squares += distance * distance;
            let of_log_prob = dlog_prob.values[row] * 2.0 * k / values as f64 * distance * b;
            let of_mean = b * dmean.values[at];
            dv[0].push(of_log_prob + of_mean);
            dv[1].push(of_log_prob);
            dv[2].push(of_mean);
        }
        log_prob.push(offset - k * squares / values as f64);
    }
    checker.close(&format!("{name}: x_next"), &got[0], &x_next, Element::F32, 1);
    checker.close(&format!("{name}: mean"), &got[1], &mean, Element::F32, 1);
    // What is squared is a difference of latents, of which the next has been rounded.
    let largest = |values: &[f64]| values.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    let size = largest(&x_next).powi(2) * largest(&coefficients.values);
    checker.close_beside(
        &format!("{name}: log_prob"),
        &got[2],
        &log_prob,
        Element::F32,
        values,
        size,
    );
    for (got, want) in got[3..].iter().zip(&dv) {
        checker.close(&format!("{name}: dv"), got, want, element, 1);
    }
}

fn distances(checker: &mut Checker<'_>, rows: usize, values: usize) {
    let name = format!("mean squared distance of {rows} x {values}");
    let element = checker.element();
    let length = rows * values;
    let a = checker.normal(length);
    let b = checker.draw(length, Element::F32, 1.0, 0.0);
    let gradient = checker.draw(rows, Element::F32, 1.0, 0.0);
    let run = |checker: &mut Checker<'_>, samples: Range<usize>| {
        let client = checker.client().clone();
        let call = Latents {
            rows: samples.len(),
            values,
        };
        let [a, b, gradient] = [&a, &b, &gradient].map(|values| checker.upload(&values.of(&samples, rows)));
        let distance = checker.room(samples.len(), Element::F32);
        let da = checker.room(a.length, element);
        let done = call.distance(&client, &a, &b, &distance);
        checker.accept(&name, done);
        let done = call.distance_backward(&client, &a, &b, &gradient, &da);
        checker.accept(&name, done);
        vec![checker.download(&distance), checker.download(&da)]
    };
    let got = checker.samples(&name, rows, run);
    let (mut distance, mut da) = (Vec::new(), Vec::new());
    for row in 0..rows {
        let pairs = row * values..(row + 1) * values;
        let differences: Vec<f64> = pairs.map(|at| a.values[at] - b.values[at]).collect();
        distance.push(differences.iter().map(|d| d * d).sum::<f64>() / values as f64);
        da.extend(
            differences
                .iter()
                .map(|d| gradient.values[row] * 2.0 / values as f64 * d),
        );
    }
    checker.close(
        &format!("{name}: distance"),
        &got[0],
        &distance,
        Element::F32,
        values,
    );
    checker.close(&format!("{name}: da"), &got[1], &da, element, 1);
}
