//! Cases of matrix products.

use super::checker::{Checker, Values};
use super::reference::activate;
use crate::Element;
use crate::activation::Activation;
use crate::product::{Factor, Product};

pub(super) fn check(checker: &mut Checker<'_>) {
    for [rows, depth, columns] in [[1, 1, 1], [13, 7, 72], [77, 72, 130], [65, 333, 64], [128, 40, 200]] {
        for layout in [[false, true], [false, false], [true, false]] {
            product(checker, [rows, depth, columns], layout, Activation::None, false);
        }
        product(checker, [rows, depth, columns], [false, true], Activation::None, true);
        product(checker, [rows, depth, columns], [false, true], Activation::GeluTanh, true);
        product(checker, [rows, depth, columns], [false, true], Activation::Silu, true);
    }
}

/// `[rows, columns]` values, in memory as they are or transposed.
fn at(values: &[f64], [rows, columns]: [usize; 2], transposed: bool, [row, column]: [usize; 2]) -> f64 {
    match transposed {
        false => values[row * columns + column],
        true => values[column * rows + row],
    }
}

fn product(
    checker: &mut Checker<'_>,
    [rows, depth, columns]: [usize; 3],
    [left_transposed, right_transposed]: [bool; 2],
    activation: Activation,
    whole: bool,
) {
    let name = format!(
        "product {rows} x {depth} x {columns}, transposed {left_transposed} {right_transposed}, {activation:?}, whole {whole}"
    );
    let element = checker.element();
    let rank = 5;
    let (left, right) = (checker.normal(rows * depth), checker.normal(depth * columns));
    let (left2, right2) = (checker.normal(rows * rank), checker.normal(rank * columns));
    let bias = checker.draw(columns, Element::F32, 1.0, 0.0);
    let client = checker.client().clone();
    let on = [&left, &right, &left2, &right2, &bias].map(|values: &Values| checker.upload(values));
    let factor = |number: usize, [rows, columns]: [usize; 2], transposed: bool| match transposed {
        false => Factor::new(&on[number], columns),
        true => Factor::new(&on[number], rows).transposed(),
    };
    let factors = [
        factor(0, [rows, depth], left_transposed),
        factor(1, [depth, columns], right_transposed),
    ];
    let scale = if whole { 1.0 } else { 0.7 };
    let call = Product {
        second: whole.then(|| (rank, [Factor::new(&on[2], rank), Factor::new(&on[3], columns)])),
        bias: whole.then_some(&on[4]),
        activation,
        scale,
        ..Product::new([rows, depth, columns], factors)
    };
    let to = if left_transposed { Element::F32 } else { element };
    let (output, sum) = (checker.room(rows * columns, to), checker.room(rows * columns, to));
    let done = call.compute(&client, &output, whole.then_some(&sum));
    checker.accept(&name, done);
    let mut sums = Vec::new();
    for row in 0..rows {
        for column in 0..columns {
            let term = |step| {
                at(&left.values, [rows, depth], left_transposed, [row, step])
                    * at(&right.values, [depth, columns], right_transposed, [step, column])
            };
            let mut sum = (0..depth).map(term).sum::<f64>() * f64::from(scale);
            if whole {
                let term = |step| left2.values[row * rank + step] * right2.values[step * columns + column];
                sum += (0..rank).map(term).sum::<f64>() + bias.values[column];
            }
            sums.push(sum);
        }
    }
    let got = checker.download(&output);
    if whole {
        let got_sums = checker.download(&sum);
        checker.close(&format!("{name}: sum"), &got_sums, &sums, to, depth);
        // The function is that of the sum as stored.
        let want: Vec<f64> = got_sums.iter().map(|x| activate(*x, activation)).collect();
        checker.close(&format!("{name}: output"), &got, &want, to, 16);
        let again = checker.room(rows * columns, to);
        let done = call.compute(&client, &again, None);
        checker.accept(&name, done);
        let again = checker.download(&again);
        checker.same(&format!("{name}: output without the sum"), &got, &again);
    } else {
        checker.close(&name, &got, &sums, to, depth);
    }
}
