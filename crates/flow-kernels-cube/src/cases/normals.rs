//! Cases of noise that the device draws: against `flow_rng` on the host, bit for bit.

use super::checker::Checker;
use crate::Element;
use crate::buffer::Refusal;
use crate::normals::{Drawn, cannot_draw, drawn_by};
use crate::sde::{Latents, Noise, Outcome, Step};
use flow_rng::{Purpose, Stream};

pub(super) fn check(checker: &mut Checker<'_>) {
    for [rows, values] in [
        [1, 1],
        [3, 7],
        [5, 10],
        [3, 333],
        [2, 4096],
        [3, 4100],
        [2, 30_001],
    ] {
        noise(checker, rows, values);
        step(checker, rows, values);
    }
    // Enough that some angles lie next to a multiple of pi/2, which one in a million does.
    noise(checker, 16, 1 << 18);
}

/// Samples that need both of their words.
fn samples(rows: usize) -> Vec<u64> {
    (0..rows as u64).map(|row| row * 0x1_0000_0007 + 3).collect()
}

fn drawn(samples: &[u64]) -> Drawn<'_> {
    Drawn {
        stream: Stream::new(0x0123_4567_89AB_CDEF, Purpose::SdeNoise),
        samples,
        step: 41,
    }
}

/// What the host draws.
fn expected(drawn: Drawn<'_>, values: usize) -> Vec<f64> {
    let rows = drawn.samples.iter().flat_map(|sample| {
        let mut row = vec![0.0f32; values];
        drawn.stream.at(*sample, drawn.step).fill_normal(&mut row);
        row
    });
    rows.map(f64::from).collect()
}

/// Whether the device was right to refuse, or not to.
fn refused(checker: &mut Checker<'_>, name: &str, result: Result<(), Refusal>) -> bool {
    match (drawn_by(checker.client()), result) {
        (false, Err(refusal)) if refusal == cannot_draw() => true,
        (false, _) => {
            checker.fail(format!("{name}: a device without f64 drew"));
            true
        }
        (true, result) => {
            checker.accept(name, result);
            false
        }
    }
}

fn noise(checker: &mut Checker<'_>, rows: usize, values: usize) {
    let name = format!("normal values of {rows} x {values}");
    let samples = samples(rows);
    let room = checker.room(rows * values, Element::F32);
    let done = drawn(&samples).draw(checker.client(), &room);
    if !refused(checker, &name, done) {
        let got = checker.download(&room);
        checker.same(&name, &got, &expected(drawn(&samples), values));
    }
}

/// A step that draws its noise has the bits of one that is given it.
fn step(checker: &mut Checker<'_>, rows: usize, values: usize) {
    let name = format!("SDE step of {rows} x {values} that draws its noise");
    let (samples, client) = (samples(rows), checker.client().clone());
    let v = checker.normal(rows * values);
    let x = checker.draw(rows * values, Element::F32, 1.0, 0.0);
    let coefficients = checker.draw(rows * 5, Element::F32, 0.3, 0.8);
    let [x, v, coefficients] = [&x, &v, &coefficients].map(|values| checker.upload(values));
    let host = expected(drawn(&samples), values);
    let host = crate::Buffer::upload(&client, &host, Element::F32);
    let results = [Noise::Given(&host), Noise::Drawn(drawn(&samples))].map(|noise| {
        let [x_next, mean] = [0; 2].map(|_| checker.room(rows * values, Element::F32));
        let log_prob = checker.room(rows, Element::F32);
        let outcome = Outcome {
            mean: &mean,
            log_prob: &log_prob,
        };
        let step = Step {
            x: &x,
            v: &v,
            coefficients: &coefficients,
        };
        let done = Latents { rows, values }.step(&client, step, noise, &x_next, outcome);
        (done, [x_next, mean, log_prob])
    });
    let [(given, by_given), (by_itself, by_drawn)] = results;
    checker.accept(&name, given);
    if !refused(checker, &name, by_itself) {
        for (one, other) in by_given.iter().zip(&by_drawn) {
            let (one, other) = (checker.download(one), checker.download(other));
            checker.same(&name, &one, &other);
        }
    }
}
