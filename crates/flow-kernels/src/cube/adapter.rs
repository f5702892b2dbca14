//! Low-rank adapters of linear layers (Hu et al. 2021, arXiv:2106.09685): `(x Aᵀ) (scale · B)ᵀ`, added to a layer's sums.
//!
//! The product of `A` and `B` is never formed. Those with `A` are small: there are too few tiles for all multiprocessors, and a
//! launch each. So layers of one input share one, with their `A` side by side, which gives the same bits; and its result, which
//! takes a fiftieth of the input's memory, is kept for backward.

use super::operand::Operand;
use super::products::{Products, matrix, part, part_alignment};
use flow_core::RawTensor;
use flow_core::ops::LinearWeights;
use flow_kernels_cube::Element;
use flow_kernels_cube::cast::MOST_JOINED;
use flow_matmul_cube::problem::{Layout, Matmul};
use flow_matmul_cube::tensors::{Matrix, Operands};
use std::sync::{Arc, OnceLock};

/// `A [rank, in]`, `B [out, rank]` and the scale of an adapter.
pub(super) type Factors<'a> = (&'a RawTensor, &'a RawTensor, f32);

/// The adapter's factors among `plain`, the values of [`LinearWeights::tensors`].
pub(super) fn factors<'a>(plain: &'a [RawTensor], weights: &LinearWeights) -> Option<Factors<'a>> {
    let (_, _, scale) = weights.adapter.as_ref()?;
    Some((&plain[plain.len() - 2], &plain[plain.len() - 1], *scale))
}

/// An adapter's factors in the type that products take.
#[derive(Debug)]
pub(super) struct Adapter {
    /// `A [rank, in]`.
    pub down: Operand,
    /// `scale · B`, `[out, rank]`.
    pub up: Matrix,
    pub scale: f32,
    pub rank: usize,
    reduced: Arc<Reduced>,
    /// Its place among those that share the product.
    place: usize,
}

/// `x Aᵀ` of adapters of layers that have one input, side by side.
#[derive(Debug)]
struct Reduced {
    /// `[adapters · rank, in]`.
    downs: Operand,
    /// `[rows, adapters · rank]`.
    of_x: OnceLock<Operand>,
}

impl Reduced {
    fn of(downs: Operand) -> Arc<Self> {
        Arc::new(Self {
            downs,
            of_x: OnceLock::new(),
        })
    }
}

impl Adapter {
    /// One by itself.
    pub fn read((down, up, scale): Factors<'_>, element: Element) -> Self {
        let down = Operand::read_as(down, element);
        let (rank, _) = down.rows_and_columns();
        Self {
            up: matrix(&Operand::read(up).times(scale, element)),
            reduced: Reduced::of(down.clone()),
            down,
            scale,
            rank,
            place: 0,
        }
    }

    /// Those of layers that have one input; none if they cannot share a product: they are too many, or of several ranks, or the
    /// device does not let a part of a result begin where theirs would.
    pub fn read_together(all: &[Factors<'_>], element: Element) -> Option<Vec<Self>> {
        if all.len() < 2 || all.len() > MOST_JOINED {
            return None;
        }
        let downs: Vec<Operand> = all.iter().map(|(down, ..)| Operand::read(down)).collect();
        let ups: Vec<Operand> = all.iter().map(|(_, up, _)| Operand::read(up)).collect();
        let (rank, inputs) = downs[0].rows_and_columns();
        let alike = downs.iter().all(|down| down.rows_and_columns() == (rank, inputs))
            && ups.iter().all(|up| up.element() == ups[0].element());
        let alignment = part_alignment(&downs[0]);
        let values = |up: &Operand| {
            let (outputs, rank) = up.rows_and_columns();
            outputs * rank
        };
        let begins = |values: usize| (values * element.bytes()).is_multiple_of(alignment);
        if !alike || !begins(rank) || !ups.iter().all(|up| begins(values(up))) {
            return None;
        }
        let downs: Vec<Operand> = downs.into_iter().map(|down| down.cast(element)).collect();
        let side_by_side: Vec<(&Operand, f32)> = downs.iter().map(|down| (down, 1.0)).collect();
        let reduced = Reduced::of(Operand::joined(
            &side_by_side,
            &[all.len() * rank, inputs],
            element,
        ));
        let scaled: Vec<(&Operand, f32)> = ups
            .iter()
            .zip(all)
            .map(|(up, (_, _, scale))| (up, *scale))
            .collect();
        let total = ups.iter().map(values).sum();
        let scaled = Operand::joined(&scaled, &[total], element);
        let mut start = 0;
        let each = all.iter().zip(downs).zip(&ups).enumerate();
        let adapters = each.map(|(place, (((_, _, scale), down), up))| {
            let (outputs, rank) = up.rows_and_columns();
            let up = part(&scaled, start, [outputs, rank], rank);
            start += outputs * rank;
            Self {
                down,
                up,
                scale: *scale,
                rank,
                reduced: reduced.clone(),
                place,
            }
        });
        Some(adapters.collect())
    }

    /// `x Aᵀ`, `[rows, rank]`; always of the same `x`.
    pub fn reduced(&self, x: &Operand, products: &Products) -> Matrix {
        let (rows, inputs) = x.rows_and_columns();
        let all = self.reduced.of_x.get_or_init(|| {
            let downs = &self.reduced.downs;
            let (columns, _) = downs.rows_and_columns();
            let call = Matmul::plain(Layout::Nt, [rows, columns, inputs], x.element());
            let output = x.empty(&[rows, columns], x.element());
            products.run(
                x,
                call,
                &Operands::new(&matrix(x), &matrix(downs), &matrix(&output)),
            );
            output
        });
        let (_, columns) = all.rows_and_columns();
        part(all, self.place * self.rank, [rows, self.rank], columns)
    }

    /// `A` as the second factor of a gradient's product lies: its rows with `Nn`, its columns with `Nt`.
    pub fn down_in(&self, layout: Layout) -> Matrix {
        match layout {
            Layout::Nt => matrix(&self.down.transposed()),
            Layout::Nn | Layout::Tn => matrix(&self.down),
        }
    }

    /// `G · scale B`, `[rows, rank]`.
    pub fn reduced_gradient(&self, gradient: &Operand, products: &Products) -> Operand {
        let (rows, outputs) = gradient.rows_and_columns();
        let call = Matmul::plain(Layout::Nn, [rows, self.rank, outputs], gradient.element());
        let output = gradient.empty(&[rows, self.rank], gradient.element());
        products.run(
            gradient,
            call,
            &Operands::new(&matrix(gradient), &self.up, &matrix(&output)),
        );
        output
    }
}
