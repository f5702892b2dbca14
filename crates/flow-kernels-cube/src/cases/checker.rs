//! Inputs, and the comparison of what a device computes with what it should.

use crate::buffer::Refusal;
use crate::{Buffer, Element};
use cubecl::prelude::*;
use flow_rng::{Purpose, Stream};
use std::ops::Range;

/// Counts what was compared, and lists what is wrong.
pub struct Checker<'a> {
    client: &'a Client,
    element: Element,
    drawn: u64,
    compared: usize,
    wrong: Vec<String>,
}

/// What came of a group of cases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Tensors compared.
    pub compared: usize,
    /// What is wrong, in words.
    pub wrong: Vec<String>,
}

/// Values on the host, and the type they have on the device.
#[derive(Clone, Debug)]
pub(super) struct Values {
    pub values: Vec<f64>,
    pub element: Element,
}

impl Values {
    /// The part that `samples` of `batch` have.
    pub fn of(&self, samples: &Range<usize>, batch: usize) -> Self {
        let each = self.values.len() / batch;
        Self {
            values: self.values[samples.start * each..samples.end * each].to_vec(),
            element: self.element,
        }
    }
}

impl<'a> Checker<'a> {
    /// For tensors of type `element` where a kernel takes several types.
    pub fn new(client: &'a Client, element: Element) -> Self {
        Self {
            client,
            element,
            drawn: 0,
            compared: 0,
            wrong: Vec::new(),
        }
    }

    /// What came of it.
    pub fn verdict(self) -> Verdict {
        Verdict {
            compared: self.compared,
            wrong: self.wrong,
        }
    }

    pub(super) fn client(&self) -> &Client {
        self.client
    }

    pub(super) fn element(&self) -> Element {
        self.element
    }

    /// `count` normal numbers, times `scale` and plus `offset`, as `element` holds them.
    pub(super) fn draw(&mut self, count: usize, element: Element, scale: f64, offset: f64) -> Values {
        self.drawn += 1;
        let mut draws = Stream::new(7, Purpose::Weights).at(self.drawn, 0);
        let values: Vec<f64> = (0..count).map(|_| draws.normal() * scale + offset).collect();
        Values {
            values: element.decode(&element.encode(&values)),
            element,
        }
    }

    /// `count` normal numbers of the group's type.
    pub(super) fn normal(&mut self, count: usize) -> Values {
        self.draw(count, self.element, 1.0, 0.0)
    }

    pub(super) fn upload(&self, values: &Values) -> Buffer {
        Buffer::upload(self.client, &values.values, values.element)
    }

    /// Room for a result, full of NaN.
    pub(super) fn room(&self, length: usize, element: Element) -> Buffer {
        Buffer::upload(self.client, &vec![f64::NAN; length], element)
    }

    pub(super) fn download(&self, buffer: &Buffer) -> Vec<f64> {
        let values = buffer.download(self.client);
        values.unwrap_or_else(|| vec![f64::NAN; buffer.length])
    }

    pub(super) fn accept(&mut self, name: &str, result: Result<(), Refusal>) {
        if let Err(refused) = result {
            self.wrong.push(format!("{name}: refused: {refused}"));
        }
    }

    pub(super) fn fail(&mut self, words: String) {
        self.wrong.push(words);
    }

    /// As [`close_beside`](Self::close_beside), where nothing larger than the results cancels.
    pub(super) fn close(&mut self, name: &str, got: &[f64], want: &[f64], element: Element, terms: usize) {
        self.close_beside(name, got, want, element, terms, 0.0);
    }

    /// Compares with `want`: the rounding of the stored type, and that of f32 sums of `terms` numbers of the size of the
    /// largest result or of `size`. Errors of sums in a random order grow with the root of their number.
    pub(super) fn close_beside(
        &mut self,
        name: &str,
        got: &[f64],
        want: &[f64],
        element: Element,
        terms: usize,
        size: f64,
    ) {
        self.compared += 1;
        if got.len() != want.len() {
            self.wrong
                .push(format!("{name}: {} values, expected {}", got.len(), want.len()));
            return;
        }
        let largest = want.iter().fold(size, |most: f64, x| most.max(x.abs()));
        let sums = 2f64.powi(-24) * 16.0 * (terms.max(1) as f64).sqrt() * largest;
        // The smallest steps of f16 are 2^-24, those of the others far below any value here.
        let step = if element == Element::F16 {
            2f64.powi(-24)
        } else {
            1e-37
        };
        let worst = got.iter().zip(want).enumerate().find(|(_, (got, want))| {
            let bound = 1.01 * element.unit_roundoff() * want.abs() + sums + step;
            let error = (*got - *want).abs();
            error > bound || error.is_nan()
        });
        if let Some((at, (got, want))) = worst {
            self.wrong.push(format!(
                "{name}: value {at} is {got:e}, expected {want:e} (f32 part of the bound {sums:e})"
            ));
        }
    }

    pub(super) fn same(&mut self, name: &str, one: &[f64], other: &[f64]) {
        self.compared += 1;
        let bits = |values: &[f64]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        if bits(one) != bits(other) {
            self.wrong.push(format!("{name}: bits differ"));
        }
    }

    /// Runs `run` on all of `batch` samples twice and on each alone; checks that the bits are the same, and returns the
    /// results of the first run. Each of the results has the sample as its first axis.
    pub(super) fn samples(
        &mut self,
        name: &str,
        batch: usize,
        run: impl Fn(&mut Self, Range<usize>) -> Vec<Vec<f64>>,
    ) -> Vec<Vec<f64>> {
        let all = run(self, 0..batch);
        let again = run(self, 0..batch);
        for (first, second) in all.iter().zip(&again) {
            self.same(&format!("{name}, twice"), first, second);
        }
        for sample in (0..batch).filter(|_| batch > 1) {
            let alone = run(self, sample..sample + 1);
            for (number, (together, alone)) in all.iter().zip(&alone).enumerate() {
                let each = together.len() / batch;
                let part = &together[sample * each..][..each];
                self.same(
                    &format!("{name}, result {number} of sample {sample} alone"),
                    part,
                    alone,
                );
            }
        }
        all
    }
}
