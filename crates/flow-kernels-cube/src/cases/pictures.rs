//! Cases of pictures within a border: group norm, its activation, enlargement; and softmax over long rows.

use super::checker::Checker;
use crate::pictures::Pictures;
use crate::pictures::border::{Bordered, border};
use crate::pictures::group_norm::GroupNorm;
use crate::softmax::softmax;
use crate::{Buffer, Element};

const EPSILON: f32 = 1e-6;

/// Samples, frames, rows, columns, channels; and groups.
const SIZES: [([usize; 5], usize); 5] = [
    ([1, 1, 1, 1, 8], 1),
    ([2, 1, 5, 3, 12], 3),
    ([3, 2, 7, 4, 64], 32),
    ([1, 1, 33, 21, 40], 5),
    ([2, 1, 3, 5, 512], 32),
];

pub(super) fn check(checker: &mut Checker<'_>) {
    for (axes, groups) in SIZES {
        for (offset, within, repeat) in [(0.0, false, 1), (30.0, true, 1), (0.0, true, 2)] {
            normed(checker, axes, groups, offset, within, repeat);
        }
    }
    parts(checker);
    for (rows, columns) in [(1, 1), (3, 7), (5, 256), (2, 1030), (1, 5000)] {
        shares(checker, rows, columns);
    }
}

/// Offsets of the pixels of pictures that lie within a border of one pixel, or without one.
fn strides([_, frames, rows, columns, channels]: [usize; 5], within: bool) -> [usize; 4] {
    let extra = if within { 2 } else { 0 };
    let row = (columns + extra) * channels;
    let frame = (rows + extra) * row;
    [frames * frame, frame, row, channels]
}

fn normed(
    checker: &mut Checker<'_>,
    axes: [usize; 5],
    groups: usize,
    offset: f64,
    within: bool,
    repeat: usize,
) {
    let name =
        format!("{axes:?} in {groups} groups around {offset}, within a border: {within}, {repeat} times");
    let element = checker.element();
    let [batch, frames, rows, columns, channels] = axes;
    let strides = strides(axes, within);
    let margin = if within { strides[2] + strides[3] } else { 0 };
    let held = checker.draw(batch * strides[0] + margin, element, 1.5, offset);
    let [weight, bias] = [0; 2].map(|_| checker.normal(channels));
    let at = |[sample, frame, row, column, channel]: [usize; 5]| {
        let from =
            sample * strides[0] + frame * strides[1] + row * strides[2] + column * strides[3] + channel;
        held.values[margin + from]
    };
    let bordered = Bordered {
        border: [1, 1],
        frames_before: 0,
        repeat,
        silu: true,
    };
    let run = |checker: &mut Checker<'_>, samples: std::ops::Range<usize>| {
        let client = checker.client().clone();
        let from = margin + samples.start * strides[0];
        let length = (samples.len() - 1) * strides[0]
            + (frames - 1) * strides[1]
            + (rows - 1) * strides[2]
            + columns * channels;
        let part = super::checker::Values {
            values: held.values[from..from + length].to_vec(),
            element,
        };
        let axes = [samples.len(), frames, rows, columns, channels];
        let x = Pictures {
            buffer: checker.upload(&part),
            axes,
            strides,
        };
        let [weight, bias] = [&weight, &bias].map(|values| checker.upload(values));
        let [scale, shift] = [0; 2].map(|_| checker.room(samples.len() * channels, Element::F32));
        let norm = GroupNorm {
            groups,
            epsilon: EPSILON,
        };
        let done = norm.factors(&client, &x, [&weight, &bias], [&scale, &shift]);
        checker.accept(&name, done);
        let y = checker.room(bordered.axes(axes).iter().product(), element);
        let done = border(&client, &x, Some([&scale, &shift]), &y, bordered);
        checker.accept(&name, done);
        checker.download(&y)
    };
    let got = run(checker, 0..batch);
    let in_group = channels / groups;
    let factors = [&weight.values[..], &bias.values[..]];
    let want = wanted(axes, groups, repeat, factors, at);
    checker.close_beside(
        &name,
        &got,
        &want,
        element,
        frames * rows * columns * in_group,
        offset,
    );
    if batch > 1 {
        let alone = run(checker, 1..2);
        let each = got.len() / batch;
        checker.same(&format!("{name}: a sample alone"), &alone, &got[each..2 * each]);
    }
}

/// A part of pictures, with zeros beside it and none above, is those rows of the whole. It begins where any device lets a buffer begin.
fn parts(checker: &mut Checker<'_>) {
    let name = "a part of pictures";
    let (element, client) = (checker.element(), checker.client().clone());
    let axes = [2, 1, 7, 4, 64];
    let strides = strides(axes, false);
    let held = checker.draw(axes.iter().product(), element, 1.5, 0.0);
    let x = Pictures {
        buffer: checker.upload(&held),
        axes,
        strides,
    };
    let written = |checker: &mut Checker<'_>, x: &Pictures, above: usize| {
        let bordered = Bordered {
            border: [above, 1],
            frames_before: 0,
            repeat: 1,
            silu: true,
        };
        let y = checker.room(bordered.axes(x.axes).iter().product(), element);
        let done = border(&client, x, None, &y, bordered);
        checker.accept(name, done);
        checker.download(&y)
    };
    let whole = written(checker, &x, 1);
    // Three rows of the second sample from its third on.
    let part = x.part([1, 1, 3, 4, 64], strides[0] + 2 * strides[2]);
    let found = written(checker, &part, 0);
    let row = (4 + 2) * 64;
    let first = ((7 + 2) + 1 + 2) * row;
    checker.same(name, &found, &whole[first..first + 3 * row]);
}

/// Group norm, its factors and SiLU of the pixels `at`, enlarged and within a border of one pixel, in f64.
fn wanted(
    [batch, frames, rows, columns, channels]: [usize; 5],
    groups: usize,
    repeat: usize,
    [weight, bias]: [&[f64]; 2],
    at: impl Fn([usize; 5]) -> f64,
) -> Vec<f64> {
    let in_group = channels / groups;
    let mut want = Vec::new();
    for sample in 0..batch {
        let moments: Vec<(f64, f64)> = (0..groups)
            .map(|group| {
                let mut values = Vec::new();
                for frame in 0..frames {
                    for row in 0..rows {
                        for column in 0..columns {
                            let of = |channel| at([sample, frame, row, column, group * in_group + channel]);
                            values.extend((0..in_group).map(of));
                        }
                    }
                }
                let mean = values.iter().sum::<f64>() / values.len() as f64;
                let square = |value: &f64| (value - mean) * (value - mean);
                (mean, values.iter().map(square).sum::<f64>() / values.len() as f64)
            })
            .collect();
        for frame in 0..frames {
            for row in 0..rows * repeat + 2 {
                for column in 0..columns * repeat + 2 {
                    let inside =
                        (1..=rows * repeat).contains(&row) && (1..=columns * repeat).contains(&column);
                    want.extend((0..channels).map(|channel| {
                        if !inside {
                            return 0.0;
                        }
                        let (mean, variance) = moments[channel / in_group];
                        let x = at([sample, frame, (row - 1) / repeat, (column - 1) / repeat, channel]);
                        let normed = (x - mean) / (variance + f64::from(EPSILON)).sqrt();
                        let y = normed * weight[channel] + bias[channel];
                        y / (1.0 + (-y).exp())
                    }));
                }
            }
        }
    }
    want
}

fn shares(checker: &mut Checker<'_>, rows: usize, columns: usize) {
    let name = format!("softmax over {rows} rows of {columns}");
    let client = checker.client().clone();
    let scores = checker.draw(rows * columns, Element::F32, 8.0, 3.0);
    let uploaded = checker.upload(&scores);
    let found: Buffer = checker.room(rows * columns, checker.element());
    let factor = 0.37f32;
    let done = softmax(&client, &uploaded, &found, columns, factor);
    checker.accept(&name, done);
    let want: Vec<f64> = scores
        .values
        .chunks(columns)
        .flat_map(|row| {
            let largest = row.iter().copied().fold(f64::MIN, f64::max);
            let each: Vec<f64> = row
                .iter()
                .map(|score| ((score - largest) * f64::from(factor)).exp())
                .collect();
            let sum: f64 = each.iter().sum();
            each.into_iter().map(move |share| share / sum)
        })
        .collect();
    let got = checker.download(&found);
    checker.close(&name, &got, &want, checker.element(), columns);
}
