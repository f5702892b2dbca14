//! The operations of a feature cache on Burn's tensors of a CubeCL device. Rows that lie one after another, of which the same is
//! wanted, are one launch: a batch has hundreds of them, and a step of a small model takes less than their launches.

use super::operand::{Operand, expect_launched};
use crate::cpu::frequencies::low_frequency_radius;
use flow_core::RawTensor;
use flow_core::model::LatentShape;
use flow_core::ops::{DeferredSums, FeatureCacheOps, PairSums, RowSource, TensorRow};
use flow_kernels_cube::feature_cache::{Pair, Row, changes, combine};
use flow_kernels_cube::frequencies::Frequencies;
use flow_kernels_cube::{Buffer, Element};

/// The operations, each one kernel per row, or per rows that lie one after another. Products are added with fused
/// multiply-adds.
#[derive(Clone, Copy, Debug)]
pub(super) struct CubeFeatureCache;

/// Tensors as operands, each read once however many rows of it are asked for: what is strided is copied.
#[derive(Default)]
struct Operands<'a>(Vec<(&'a RawTensor, Operand)>);

impl<'a> Operands<'a> {
    /// The place of `tensor`, read if it was not.
    fn add(&mut self, tensor: &'a RawTensor) -> usize {
        let known = self.0.iter().position(|(of, _)| std::ptr::eq(*of, tensor));
        known.unwrap_or_else(|| {
            self.0.push((tensor, Operand::read(tensor)));
            self.0.len() - 1
        })
    }

    /// Rows and their values, as operands of one type per pair: that of the first.
    fn pairs(pairs: &[(TensorRow<'a>, TensorRow<'a>)]) -> Vec<[(Operand, usize); 2]> {
        let mut operands = Self::default();
        let pair = |((a, row_a), (b, row_b)): &(TensorRow<'a>, TensorRow<'a>)| {
            let [a, b] = [a, b].map(|tensor| {
                let at = operands.add(tensor);
                operands.0[at].1.clone()
            });
            let b = b.cast(a.element());
            [(a, *row_a), (b, *row_b)]
        };
        pairs.iter().map(pair).collect()
    }
}

/// Values of a row of a tensor of this shape.
fn each(shape: &[usize]) -> usize {
    shape[1..].iter().product()
}

/// `shape` with a batch of one.
fn one_row(shape: &[usize]) -> Vec<usize> {
    [&[1][..], &shape[1..]].concat()
}

/// Whether `later` is what `row` is, `next` rows further on in the same tensors.
fn follows(row: &RowSource<'_>, later: &RowSource<'_>, next: usize) -> bool {
    match (row, later) {
        (RowSource::Computed(of), RowSource::Computed(at)) => *at == of + next,
        (RowSource::Forecast(terms), RowSource::Forecast(others)) => {
            let same = |((weight, (tensor, row)), (of, (other, at))): (&Term<'_>, &Term<'_>)| {
                weight.to_bits() == of.to_bits() && std::ptr::eq(*tensor, *other) && *at == row + next
            };
            terms.len() == others.len() && terms.iter().zip(others).all(same)
        }
        _ => false,
    }
}

/// A weight, and the row that it is for.
type Term<'a> = (f32, TensorRow<'a>);

/// A row of `outputs`, less that row of the base that belongs to it. Rounded once, so this is the difference.
fn less<'a>(outputs: &'a Buffer, base: Option<&'a (Buffer, &[usize])>, row: usize) -> Vec<(f32, Row<'a>)> {
    let output = (1.0, Row { buffer: outputs, row });
    let base = base.map(|(buffer, of)| (-1.0, Row { buffer, row: of[row] }));
    std::iter::once(output).chain(base).collect()
}

impl FeatureCacheOps for CubeFeatureCache {
    fn assemble(
        &self,
        shape: &[usize],
        computed: Option<&RawTensor>,
        base: Option<&RawTensor>,
        rows: &[RowSource<'_>],
    ) -> RawTensor {
        const NAME: &str = "assemble";
        let first = |row: &'_ RowSource<'_>| match row {
            RowSource::Forecast(terms) => terms.first().map(|(_, (feature, _))| Operand::read(feature)),
            RowSource::Computed(_) => None,
        };
        let (computed, base) = (computed.map(Operand::read), base.map(Operand::read));
        let like = (base.clone().or_else(|| computed.clone())).or_else(|| rows.iter().find_map(first));
        let like = like.expect("a row comes from what was computed, from a base or from features");
        let element = like.element();
        let [computed, base] = [computed, base].map(|of| of.map(|of| of.cast(element).buffer()));
        let output = like.empty(shape, element);
        let (buffer, client, values) = (output.buffer(), output.client().clone(), each(shape));
        let mut index = 0;
        while index < rows.len() {
            let place = Row {
                buffer: &buffer,
                row: index,
            };
            let same =
                |next: &usize| (rows.get(index + next)).is_some_and(|row| follows(&rows[index], row, *next));
            let count = 1 + (1..).take_while(same).count();
            match &rows[index] {
                RowSource::Computed(of) => {
                    let computed = computed.as_ref().expect("a row comes from what was computed");
                    let source = Row {
                        buffer: computed,
                        row: *of,
                    };
                    expect_launched(NAME, combine(&client, values, count, &[(1.0, source)], place));
                }
                RowSource::Forecast(terms) => {
                    let features: Vec<(f32, Buffer, usize)> = (terms.iter())
                        .map(|(weight, (feature, row))| {
                            (*weight, Operand::read_as(feature, element).buffer(), *row)
                        })
                        .collect();
                    let base = base.iter().map(|buffer| (1.0, Row { buffer, row: index }));
                    let features = features
                        .iter()
                        .map(|(weight, buffer, row)| (*weight, Row { buffer, row: *row }));
                    let sources: Vec<(f32, Row<'_>)> = base.chain(features).collect();
                    expect_launched(NAME, combine(&client, values, count, &sources, place));
                }
            }
            index += count;
        }
        output.into_plain()
    }

    fn features(&self, outputs: &RawTensor, base: Option<(&RawTensor, &[usize])>) -> Vec<RawTensor> {
        let outputs = Operand::read(outputs);
        let base = base.map(|(base, of)| (Operand::read_as(base, outputs.element()).buffer(), of));
        let (shape, buffer) = (outputs.shape(), outputs.buffer());
        let (values, one) = (each(&shape), one_row(&shape));
        let feature = |row: usize| {
            let feature = outputs.empty(&one, outputs.element());
            let output = feature.buffer();
            let sources = less(&buffer, base.as_ref(), row);
            let place = Row {
                buffer: &output,
                row: 0,
            };
            expect_launched("features", combine(outputs.client(), values, 1, &sources, place));
            feature.into_plain()
        };
        (0..shape[0]).map(feature).collect()
    }

    fn together(&self, outputs: &RawTensor, base: Option<(&RawTensor, &[usize])>) -> RawTensor {
        let outputs = Operand::read(outputs);
        let base = base.map(|(base, of)| (Operand::read_as(base, outputs.element()).buffer(), of));
        let (shape, buffer) = (outputs.shape(), outputs.buffer());
        let features = outputs.empty(&shape, outputs.element());
        let (output, mut row) = (features.buffer(), 0);
        while row < shape[0] {
            let sources = less(&buffer, base.as_ref(), row);
            let count = match &base {
                None => shape[0] - row,
                Some((_, of)) => (row..shape[0])
                    .take_while(|at| of[*at] == of[row] + at - row)
                    .count(),
            };
            let place = Row { buffer: &output, row };
            expect_launched(
                "features",
                combine(outputs.client(), each(&shape), count, &sources, place),
            );
            row += count;
        }
        features.into_plain()
    }

    fn changes(&self, pairs: &[(TensorRow<'_>, TensorRow<'_>)]) -> DeferredSums {
        let operands = Operands::pairs(pairs);
        let Some([(first, _), _]) = operands.first() else {
            return DeferredSums::deferred(Vec::new);
        };
        let sums = first.empty(&[pairs.len(), 3], Element::F32);
        let buffers: Vec<[Buffer; 2]> = (operands.iter())
            .map(|[(a, _), (b, _)]| [a.buffer(), b.buffer()])
            .collect();
        let pairs: Vec<Pair<'_>> = (operands.iter().zip(&buffers))
            .map(|([(a, row_a), (_, row_b)], [on_a, on_b])| Pair {
                a: Row {
                    buffer: on_a,
                    row: *row_a,
                },
                b: Row {
                    buffer: on_b,
                    row: *row_b,
                },
                values: each(&a.shape()),
            })
            .collect();
        let (client, buffer) = (sums.client().clone(), sums.buffer());
        expect_launched("changes", changes(&client, &pairs, &buffer));
        DeferredSums::deferred(move || {
            let sums = buffer.download(&client);
            let sums = sums.expect("the device that holds what is compared answers");
            let sum = |of: &[f64]| PairSums {
                change: of[0],
                of_a: of[1],
                of_b: of[2],
            };
            sums.chunks_exact(3).map(sum).collect()
        })
    }

    fn frequencies(
        &self,
        pairs: &[(TensorRow<'_>, TensorRow<'_>)],
        shape: &LatentShape,
    ) -> Vec<[RawTensor; 2]> {
        let call = Frequencies {
            planes: shape.channels * shape.frames,
            height: shape.height,
            width: shape.width,
            radius: low_frequency_radius(shape),
        };
        let parts = |[(a, row_a), (b, row_b)]: [(Operand, usize); 2]| {
            let one = one_row(&a.shape());
            let parts = [0; 2].map(|_| a.empty(&one, a.element()));
            let [on_a, on_b] = [&a, &b].map(Operand::buffer);
            let rows = [(&on_a, row_a), (&on_b, row_b)].map(|(buffer, row)| Row { buffer, row });
            let [low, high] = [&parts[0], &parts[1]].map(Operand::buffer);
            expect_launched("frequencies", call.split(a.client(), rows, [&low, &high]));
            parts.map(Operand::into_plain)
        };
        Operands::pairs(pairs).into_iter().map(parts).collect()
    }
}
