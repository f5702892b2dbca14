//! Cases of activations, gated residuals, rotary embeddings, embeddings and casts.

use super::checker::{Checker, Values};
use super::reference::{activate, activation_slope, rotate_row};
use crate::activation::{self, Activation};
use crate::cast::{MOST_JOINED, cast, join};
use crate::embedding::Embedding;
use crate::gated_residual::Gate;
use crate::rotary::Rotary;
use crate::runs::{self, Runs};
use crate::{Buffer, Element};
use cubecl::prelude::CubeElement;
use std::ops::Range;

pub(super) fn check(checker: &mut Checker<'_>) {
    for function in [Some(Activation::Silu), Some(Activation::GeluTanh), None] {
        for [rows, columns] in [[1, 1], [13, 7], [77, 72], [300, 64], [1030, 333], [40, 1152]] {
            activations(checker, function, [rows, columns]);
        }
    }
    for size in [
        [1, 1, 1],
        [3, 13, 7],
        [1, 77, 72],
        [3, 140, 64],
        [2, 5, 333],
        [2, 300, 1152],
    ] {
        gate(checker, size);
    }
    for size in [[1, 1, 1, 2], [3, 13, 2, 6], [2, 77, 3, 72], [3, 5, 2, 64]] {
        rotary(checker, size);
    }
    for [rows, channels, count] in [[1, 1, 1], [5, 7, 33], [10, 1152, 13], [3, 333, 8]] {
        embedding(checker, [rows, channels, count]);
    }
    casts(checker);
    joins(checker);
    runs(checker);
}

fn activations(checker: &mut Checker<'_>, function: Option<Activation>, [rows, columns]: [usize; 2]) {
    let name = format!("{function:?} of {rows} x {columns}");
    let element = checker.element();
    let length = rows * columns;
    let (x, gradient) = (checker.draw(length, element, 3.0, 0.0), checker.normal(length));
    let client = checker.client().clone();
    let [on_x, on_gradient] = [&x, &gradient].map(|values| checker.upload(values));
    // About ten roundings of arguments up to 10 of an exponential.
    let terms = 16;
    if let Some(applied) = function {
        let y = checker.room(length, element);
        let done = activation::forward(&client, &on_x, &y, applied);
        checker.accept(&name, done);
        let want: Vec<f64> = x.values.iter().map(|x| activate(*x, function)).collect();
        let got = checker.download(&y);
        checker.close(&format!("{name}: y"), &got, &want, element, terms);
    }

    let identity = function.is_none();
    let run = |checker: &mut Checker<'_>| {
        let (dx, dbias) = (checker.room(length, element), checker.room(columns, Element::F32));
        let call = activation::Backward {
            columns,
            activation: function,
            x: (!identity).then_some(&on_x),
            gradient: &on_gradient,
            dx: (!identity).then_some(&dx),
            dbias: Some(&dbias),
        };
        let done = activation::backward(&client, call);
        checker.accept(&name, done);
        let dx = if identity { on_gradient.clone() } else { dx };
        [checker.download(&dx), checker.download(&dbias)]
    };
    let (first, second) = (run(checker), run(checker));
    for (first, second) in first.iter().zip(&second) {
        checker.same(&format!("{name}, gradients, twice"), first, second);
    }
    let slopes = x.values.iter().zip(&gradient.values);
    let dx: Vec<f64> = slopes.map(|(x, g)| g * activation_slope(*x, function)).collect();
    checker.close(&format!("{name}: dx"), &first[0], &dx, element, terms);
    // Sums are those of the values as stored.
    let mut dbias = vec![0.0; columns];
    for row in first[0].chunks(columns) {
        dbias.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
    checker.close(&format!("{name}: dbias"), &first[1], &dbias, Element::F32, rows);
}

fn gate(checker: &mut Checker<'_>, [batch, tokens, channels]: [usize; 3]) {
    let name = format!("gated residual of {batch} x {tokens} x {channels}");
    let element = checker.element();
    let (chunks, gate) = (3, 1);
    let length = batch * tokens * channels;
    let [residual, branch, gradient] = [0; 3].map(|_| checker.normal(length));
    let modulation = checker.normal(batch * chunks * channels);
    let run = |checker: &mut Checker<'_>, samples: Range<usize>| {
        let client = checker.client().clone();
        let call = Gate {
            batch: samples.len(),
            tokens,
            channels,
            chunks,
            gate,
        };
        let [residual, branch, gradient, modulation] = [&residual, &branch, &gradient, &modulation]
            .map(|values| checker.upload(&values.of(&samples, batch)));
        let [y, dbranch, alone] = [0; 3].map(|_| checker.room(branch.length, element));
        let dmodulation = checker.room(modulation.length, element);
        let done = call.forward(&client, &residual, &branch, &modulation, &y);
        checker.accept(&name, done);
        let done = call.backward(
            &client,
            &branch,
            &modulation,
            &gradient,
            Some(&dbranch),
            Some(&dmodulation),
        );
        checker.accept(&name, done);
        let done = call.backward(&client, &branch, &modulation, &gradient, Some(&alone), None);
        checker.accept(&name, done);
        let dbranch = checker.download(&dbranch);
        let alone = checker.download(&alone);
        checker.same(&format!("{name}: dbranch without dmodulation"), &dbranch, &alone);
        vec![checker.download(&y), dbranch, checker.download(&dmodulation)]
    };
    let got = checker.samples(&name, batch, run);
    let (mut y, mut dbranch) = (Vec::new(), Vec::new());
    let mut dmodulation = vec![0.0; batch * chunks * channels];
    for at in 0..length {
        let place = (at / channels / tokens * chunks + gate) * channels + at % channels;
        let factor = modulation.values[place];
        y.push(residual.values[at] + factor * branch.values[at]);
        dbranch.push(gradient.values[at] * factor);
        dmodulation[place] += gradient.values[at] * branch.values[at];
    }
    checker.close(&format!("{name}: y"), &got[0], &y, element, 1);
    checker.close(&format!("{name}: dbranch"), &got[1], &dbranch, element, 1);
    checker.close(
        &format!("{name}: dmodulation"),
        &got[2],
        &dmodulation,
        element,
        tokens,
    );
}

fn rotary(checker: &mut Checker<'_>, [batch, tokens, heads, head_dim]: [usize; 4]) {
    let name = format!("rotary of {batch} x {tokens} x {heads} x {head_dim}");
    let element = checker.element();
    let length = batch * tokens * heads * head_dim;
    let x = checker.normal(length);
    let [cos, sin] = [0; 2].map(|_| checker.draw(tokens * head_dim / 2, Element::F32, 0.7, 0.0));
    let tables = [checker.upload(&cos), checker.upload(&sin)];
    let run = |checker: &mut Checker<'_>, samples: Range<usize>| {
        let client = checker.client().clone();
        let call = Rotary {
            batch: samples.len(),
            tokens,
            heads,
            head_dim,
        };
        let x = checker.upload(&x.of(&samples, batch));
        let [y, dx] = [0; 2].map(|_| checker.room(x.length, element));
        let tables = [&tables[0], &tables[1]];
        let done = call.forward(&client, &x, tables, &y);
        checker.accept(&name, done);
        let done = call.backward(&client, &x, tables, &dx);
        checker.accept(&name, done);
        vec![checker.download(&y), checker.download(&dx)]
    };
    let got = checker.samples(&name, batch, run);
    for (direction, got) in [1.0, -1.0].into_iter().zip(&got) {
        let rows = x.values.chunks(head_dim).enumerate();
        let want: Vec<f64> = rows
            .flat_map(|(row, x)| {
                let at = row / heads % tokens * head_dim / 2;
                let (cos, sin) = (
                    &cos.values[at..][..head_dim / 2],
                    &sin.values[at..][..head_dim / 2],
                );
                rotate_row(x, cos, sin, direction)
            })
            .collect();
        checker.close(&format!("{name}, direction {direction}"), got, &want, element, 1);
    }
}

fn embedding(checker: &mut Checker<'_>, [rows, channels, count]: [usize; 3]) {
    let name = format!("embedding of {count} of {rows} x {channels}");
    let element = checker.element();
    let call = Embedding {
        rows,
        channels,
        count,
    };
    let table = checker.draw(rows * channels, Element::F32, 1.0, 0.0);
    let gradient = checker.normal(count * channels);
    // One index twice in a row, one never, and one out of range where there is room.
    let wild = count - 1;
    let index: Vec<i32> = (0..count)
        .map(|at| match at == wild && count > 1 {
            true => rows as i32,
            false => (at * at / 2 % rows) as i32,
        })
        .collect();
    let client = checker.client().clone();
    let on_index = client.create_from_slice(i32::as_bytes(&index));
    let (on_table, on_gradient) = (checker.upload(&table), checker.upload(&gradient));
    let y = checker.room(count * channels, element);
    let dtable = checker.room(rows * channels, Element::F32);
    let done = call.forward(&client, &on_table, &on_index, &y);
    checker.accept(&name, done);
    let done = call.backward(&client, &on_gradient, &on_index, &dtable);
    checker.accept(&name, done);
    let (mut want, mut dwant) = (Vec::new(), vec![0.0; rows * channels]);
    for (at, row) in index
        .iter()
        .enumerate()
        .filter(|(_, row)| (**row as usize) < rows)
    {
        let place = *row as usize * channels;
        want.extend(&table.values[place..][..channels]);
        let sums = dwant[place..][..channels].iter_mut();
        sums.zip(&gradient.values[at * channels..])
            .for_each(|(sum, g)| *sum += g);
    }
    let got = checker.download(&y);
    let (known, unknown) = got.split_at(want.len());
    checker.close(&format!("{name}: y"), known, &want, element, 1);
    if !unknown.iter().all(|x| x.is_nan()) {
        checker.fail(format!("{name}: an index out of range gives a number"));
    }
    let got = checker.download(&dtable);
    checker.close(&format!("{name}: dtable"), &got, &dwant, Element::F32, count);
}

fn casts(checker: &mut Checker<'_>) {
    let element = checker.element();
    for (length, aligned) in [(1, true), (7, true), (4096, true), (333, false), (64, false)] {
        let wide = checker.draw(length, Element::F32, 1.0, 0.0);
        let client = checker.client().clone();
        for (from, to) in [(Element::F32, element), (element, Element::F32)] {
            let name = format!("cast of {length} values from {} to {}", from.name(), to.name());
            let values = Values {
                values: from.decode(&from.encode(&wide.values)),
                element: from,
            };
            let (x, y): (Buffer, Buffer) = (checker.upload(&values), checker.room(length, to));
            let done = cast(&client, &x, &y, 1.0, aligned);
            checker.accept(&name, done);
            let got = checker.download(&y);
            checker.same(&name, &got, &to.decode(&to.encode(&values.values)));
            let done = cast(&client, &x, &y, 0.3, aligned);
            checker.accept(&name, done);
            let got = checker.download(&y);
            let want: Vec<f64> = values.values.iter().map(|x| x * f64::from(0.3f32)).collect();
            checker.close(&format!("{name}, times 0.3"), &got, &want, to, 1);
        }
    }
}

fn joins(checker: &mut Checker<'_>) {
    let element = checker.element();
    let client = checker.client().clone();
    for lengths in [&[1][..], &[64, 64, 64], &[7, 4096, 8], &[0, 333, 1, 16]] {
        for (from, to) in [
            (element, element),
            (element, Element::F32),
            (Element::F32, element),
        ] {
            let name = format!(
                "{lengths:?} values of {} side by side in {}",
                from.name(),
                to.name()
            );
            let total: usize = lengths.iter().sum();
            let parts: Vec<Values> = lengths
                .iter()
                .map(|length| checker.draw(*length, from, 1.0, 0.0))
                .collect();
            let factors = [1.0, 0.3, -2.0, 5.0];
            let buffers = parts.iter().map(|part| checker.upload(part));
            let joined: Vec<(Buffer, f32)> = buffers.zip(factors).collect();
            let y: Buffer = checker.room(total, to);
            checker.accept(&name, join(&client, &joined, &y));
            let got = checker.download(&y);
            let mut start = 0;
            for (index, (part, factor)) in joined.iter().enumerate() {
                let alone: Buffer = checker.room(part.length, to);
                checker.accept(&name, cast(&client, part, &alone, *factor, true));
                let of_part = format!("{name}, part {index}");
                let cast_alone = checker.download(&alone);
                checker.same(&of_part, &got[start..start + part.length], &cast_alone);
                let factor = f64::from(*factor);
                let want: Vec<f64> = parts[index].values.iter().map(|x| x * factor).collect();
                checker.close(&of_part, &got[start..start + part.length], &want, to, 1);
                start += part.length;
            }
        }
    }
    let one: Buffer = checker.room(8, element);
    let many = vec![(one, 1.0); MOST_JOINED + 1];
    let y: Buffer = checker.room(8 * many.len(), element);
    if join(&client, &many, &y).is_ok() {
        checker.fail("more tensors are joined than the kernel takes".into());
    }
}

/// Columns of rows taken out and put in: all widths of vectors, a run that fills its pitch, and one alone.
fn runs(checker: &mut Checker<'_>) {
    let element = checker.element();
    let client = checker.client().clone();
    for ([count, length], [start, pitch], [to, to_pitch]) in [
        ([1, 5], [3, 0], [0, 0]),
        ([13, 7], [2, 33], [1, 8]),
        ([77, 64], [128, 320], [0, 64]),
        ([77, 64], [0, 64], [64, 320]),
        ([5, 24], [4, 100], [12, 36]),
        ([300, 1152], [1152, 3456], [0, 1152]),
    ] {
        let name = format!("{count} runs of {length} values, {pitch} apart, to {to_pitch} apart");
        let [end, to_end] =
            [(start, pitch), (to, to_pitch)].map(|(start, pitch)| start + (count - 1) * pitch + length);
        let (x, before) = (checker.normal(end), checker.normal(to_end));
        let [on_x, on_y] = [&x, &before].map(|values| checker.upload(values));
        let (from, into) = (
            Runs { start, pitch },
            Runs {
                start: to,
                pitch: to_pitch,
            },
        );
        let done = runs::copy(&client, [count, length], (&on_x, from), (&on_y, into));
        checker.accept(&name, done);
        let mut want = before.values.clone();
        for run in 0..count {
            let values = &x.values[start + run * pitch..][..length];
            want[to + run * to_pitch..][..length].copy_from_slice(values);
        }
        let got = checker.download(&on_y);
        checker.same(&name, &got, &want);
    }
    let x: Buffer = checker.room(64, element);
    let (dense, apart) = (Runs { start: 0, pitch: 8 }, Runs { start: 1, pitch: 8 });
    for (name, from, length) in [("beyond its end", apart, 8), ("into the next", dense, 9)] {
        if runs::copy(&client, [8, length], (&x, from), (&x, dense)).is_ok() {
            checker.fail(format!("a run that reaches {name} is copied"));
        }
    }
}
