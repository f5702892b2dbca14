//! Cases of what a feature cache does with rows: combinations, copies, sums of changes, frequencies.

use super::checker::{Checker, Values};
use super::reference::low_frequencies;
use crate::feature_cache::{MOST_SOURCES, Pair, Row, changes, combine};
use crate::frequencies::Frequencies;
use crate::{Buffer, Element};

pub(super) fn check(checker: &mut Checker<'_>) {
    for values in [1, 7, 333, 4096, 4100, 30_001] {
        for sources in 1..=MOST_SOURCES {
            combinations(checker, values, sources);
        }
        copies(checker, values);
    }
    sums(checker);
    for size in [
        [1, 1, 1, 0],
        [3, 4, 5, 0],
        [2, 5, 7, 1],
        [1, 16, 12, 2],
        [3, 33, 20, 4],
        [2, 12, 52, 5],
    ] {
        frequencies(checker, size);
    }
}

fn part(of: &Values, row: usize, values: usize) -> &[f64] {
    &of.values[row * values..][..values]
}

/// A row of so many sources, each another row of a buffer, into the middle of a buffer.
fn combinations(checker: &mut Checker<'_>, values: usize, sources: usize) {
    let name = format!("a row of {values} values from {sources} sources");
    let element = checker.element();
    let client = checker.client().clone();
    let weights = [1.0f32, 1.7, -0.9, 0.2, -2.5, 0.6];
    let all: Vec<Values> = (0..sources)
        .map(|at| checker.normal((1 + at % 3) * values))
        .collect();
    let buffers: Vec<Buffer> = all.iter().map(|values| checker.upload(values)).collect();
    let row = |at: usize| at % 3;
    let terms: Vec<(f32, Row<'_>)> = buffers
        .iter()
        .enumerate()
        .map(|(at, buffer)| (weights[at], Row { buffer, row: row(at) }))
        .collect();
    let output = checker.room(3 * values, element);
    let place = Row {
        buffer: &output,
        row: 1,
    };
    let done = combine(&client, values, 1, &terms, place);
    checker.accept(&name, done);
    let got = checker.download(&output);
    let want: Vec<f64> = (0..values)
        .map(|i| {
            let term = |(at, of): (usize, &Values)| f64::from(weights[at]) * part(of, row(at), values)[i];
            all.iter().enumerate().map(term).sum()
        })
        .collect();
    checker.close_beside(&name, &got[values..2 * values], &want, element, sources, 4.0);
    if !got[..values].iter().chain(&got[2 * values..]).all(|x| x.is_nan()) {
        checker.fail(format!("{name}: other rows were written"));
    }
    // The row does not depend on where it is written, nor on what lies beside its sources.
    let alone = checker.room(values, element);
    let singles: Vec<Buffer> = all
        .iter()
        .enumerate()
        .map(|(at, of)| {
            let values = part(of, row(at), values).to_vec();
            checker.upload(&Values { values, element })
        })
        .collect();
    let terms: Vec<(f32, Row<'_>)> = singles
        .iter()
        .zip(weights)
        .map(|(buffer, weight)| (weight, Row { buffer, row: 0 }))
        .collect();
    let place = Row {
        buffer: &alone,
        row: 0,
    };
    let done = combine(&client, values, 1, &terms, place);
    checker.accept(&name, done);
    let alone = checker.download(&alone);
    checker.same(&format!("{name}, alone"), &got[values..2 * values], &alone);
}

/// Three rows of five to others, bit for bit.
fn copies(checker: &mut Checker<'_>, values: usize) {
    let name = format!("three rows of {values} values copied");
    let element = checker.element();
    let client = checker.client().clone();
    let from = checker.normal(5 * values);
    let (source, output) = (checker.upload(&from), checker.room(4 * values, element));
    let [source, place] = [(&source, 2), (&output, 1)].map(|(buffer, row)| Row { buffer, row });
    let done = combine(&client, values, 3, &[(1.0, source)], place);
    checker.accept(&name, done);
    let got = checker.download(&output);
    checker.same(&name, &got[values..], &from.values[2 * values..]);
    if !got[..values].iter().all(|x| x.is_nan()) {
        checker.fail(format!("{name}: another row was written"));
    }
}

/// Pairs of rows of different lengths in one call, and each alone.
fn sums(checker: &mut Checker<'_>) {
    let lengths = [1, 7, 333, 4096, 4100, 30_001, 1_100_000];
    let client = checker.client().clone();
    let rows = 2;
    let all: Vec<[Values; 2]> = lengths
        .iter()
        .map(|values| [0; 2].map(|_| checker.normal(rows * values)))
        .collect();
    let buffers: Vec<[Buffer; 2]> = all
        .iter()
        .map(|pair| [&pair[0], &pair[1]].map(|values| checker.upload(values)))
        .collect();
    let pairs: Vec<Pair<'_>> = (lengths.iter().zip(&buffers).enumerate())
        .map(|(at, (values, [a, b]))| Pair {
            a: Row {
                buffer: a,
                row: at % 2,
            },
            b: Row { buffer: b, row: 1 },
            values: *values,
        })
        .collect();
    let output = checker.room(pairs.len() * 3, Element::F32);
    let done = changes(&client, &pairs, &output);
    checker.accept("sums of changes", done);
    let got = checker.download(&output);
    for (at, (values, [a, b])) in lengths.into_iter().zip(&all).enumerate() {
        let name = format!("sums of changes of {values} values");
        let (a, b) = (part(a, at % 2, values), part(b, 1, values));
        let sum = |values: &mut dyn Iterator<Item = f64>| values.map(f64::abs).sum::<f64>();
        let want = [
            sum(&mut a.iter().zip(b).map(|(a, b)| a - b)),
            sum(&mut a.iter().copied()),
            sum(&mut b.iter().copied()),
        ];
        for (got, want) in got[3 * at..].iter().zip(want) {
            // Four terms: 2^-19 of the sum.
            checker.close(&name, &[*got], &[want], Element::F32, 4);
        }
        let alone = checker.room(3, Element::F32);
        let done = changes(&client, &pairs[at..=at], &alone);
        checker.accept(&name, done);
        let alone = checker.download(&alone);
        checker.same(&format!("{name}, alone"), &got[3 * at..][..3], &alone);
    }
}

fn frequencies(checker: &mut Checker<'_>, [planes, height, width, radius]: [usize; 4]) {
    let name = format!("frequencies of {planes} planes of {height} x {width} within {radius}");
    let element = checker.element();
    let client = checker.client().clone();
    let each = height * width;
    let values = planes * each;
    let (a, b) = (checker.normal(3 * values), checker.normal(2 * values));
    let [on_a, on_b] = [&a, &b].map(|values| checker.upload(values));
    let call = Frequencies {
        planes,
        height,
        width,
        radius,
    };
    let run = |checker: &mut Checker<'_>| {
        let [low, high] = [0; 2].map(|_| checker.room(values, element));
        let rows = [(&on_a, 2), (&on_b, 1)].map(|(buffer, row)| Row { buffer, row });
        let done = call.split(&client, rows, [&low, &high]);
        checker.accept(&name, done);
        [&low, &high].map(|part| checker.download(part))
    };
    let got = run(checker);
    let again = run(checker);
    checker.same(&format!("{name}, twice"), &got.concat(), &again.concat());
    let pairs = part(&a, 2, values).iter().zip(part(&b, 1, values));
    let difference: Vec<f64> = pairs.map(|(a, b)| a - b).collect();
    let low: Vec<f64> = difference
        .chunks(each)
        .flat_map(|plane| low_frequencies(plane, [height, width], radius))
        .collect();
    let high: Vec<f64> = difference.iter().zip(&low).map(|(all, low)| all - low).collect();
    for (part, (got, want)) in ["low", "high"].into_iter().zip(got.iter().zip([low, high])) {
        checker.close_beside(&format!("{name}: {part}"), got, &want, element, 1, 4.0);
    }
}
