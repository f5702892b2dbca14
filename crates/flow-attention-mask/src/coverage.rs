//! How much of a rectangle of queries and keys a mask allows, without looking at every element.
//!
//! Queries and keys are summed up once for each tile, and a pair of tiles is judged by their summaries alone. A
//! judgement may be too careful (`Partial` where it is `All` or `None`), never too bold.

use crate::bits::Bits;
use crate::kinds::{BlockSparse, Extent, Grid};
use crate::mask::{Bound, Mask, Sizes, reach};
use std::ops::Range;

/// How much of a rectangle is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// Nothing.
    None,
    /// Something, maybe everything, maybe nothing.
    Partial,
    /// Everything.
    All,
}

impl Coverage {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::None, _) | (_, Self::None) => Self::None,
            (Self::All, Self::All) => Self::All,
            _ => Self::Partial,
        }
    }
}

/// Tokens `columns` of one row of a frame.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    frame: usize,
    row: usize,
    columns: Range<usize>,
}

/// What there is to know about a range of tokens.
#[derive(Clone, Debug)]
pub(crate) enum Summary {
    /// Where it is suffices.
    Range,
    /// Which numbers it bears, ascending.
    Numbers(Vec<u32>),
    /// The rows of frames it consists of.
    Segments(Vec<Segment>),
    /// Of each mask of a conjunction.
    Each(Vec<Summary>),
}

/// A range of tokens with its summary.
#[derive(Clone, Debug)]
pub(crate) struct Tokens {
    pub range: Range<usize>,
    pub summary: Summary,
}

/// Which side tokens are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Axis {
    Queries,
    Keys,
}

impl Bound<'_> {
    /// Sums up a range of tokens.
    pub(crate) fn tokens(&self, batch: usize, axis: Axis, range: Range<usize>) -> Tokens {
        let summary = summary(self.mask, batch, axis, &range);
        Tokens { range, summary }
    }

    /// Judges a rectangle.
    pub(crate) fn coverage(&self, batch: usize, queries: &Tokens, keys: &Tokens) -> Coverage {
        if queries.range.is_empty() || keys.range.is_empty() {
            return Coverage::None;
        }
        let ranges = (&queries.range, &keys.range);
        coverage(
            self.mask,
            &self.sizes,
            batch,
            ranges,
            (&queries.summary, &keys.summary),
        )
    }

    /// Every element of a rectangle.
    pub(crate) fn bits(&self, batch: usize, queries: Range<usize>, keys: Range<usize>, bits: &mut Bits) {
        bits.reset(queries.len(), keys.len());
        restrict(self.mask, &self.sizes, batch, &queries, &keys, bits);
    }
}

/// Keys of a query, for masks that allow one run of them. Both ends never decrease from one query to the next.
fn interval(mask: &Mask, sizes: &Sizes, batch: usize, query: usize) -> Option<(usize, usize)> {
    let diagonal = query as i64 + sizes.keys() as i64 - sizes.queries as i64;
    let at = |position: i64| position.max(0) as usize;
    match mask {
        Mask::Full => Some((0, sizes.keys())),
        Mask::Causal => Some((0, at(diagonal + 1))),
        Mask::Window { before, after } => {
            Some((at(diagonal - reach(*before)), at(diagonal + reach(*after) + 1)))
        }
        Mask::KeyPadding(padding) => Some((0, padding.keys(batch))),
        Mask::Packed(packed) => Some(packed.interval(query)),
        Mask::Documents(_) | Mask::BlockSparse(_) | Mask::Video { .. } | Mask::And(_) => None,
    }
}

fn summary(mask: &Mask, batch: usize, axis: Axis, range: &Range<usize>) -> Summary {
    match mask {
        Mask::Documents(documents) => {
            let all = match axis {
                Axis::Queries => documents.of_queries(batch),
                Axis::Keys => documents.of_keys(batch),
            };
            let mut numbers = all[range.clone()].to_vec();
            numbers.sort_unstable();
            numbers.dedup();
            Summary::Numbers(numbers)
        }
        Mask::Video { grid, .. } => Summary::Segments(segments(grid, range)),
        Mask::And(masks) => Summary::Each(
            masks
                .iter()
                .map(|mask| summary(mask, batch, axis, range))
                .collect(),
        ),
        _ => Summary::Range,
    }
}

fn segments(grid: &Grid, range: &Range<usize>) -> Vec<Segment> {
    let width = grid.extent().width;
    let mut found = Vec::new();
    let mut token = range.start;
    while token < range.end {
        let [frame, row, column] = grid.place(token);
        let end = (token + width - column).min(range.end);
        found.push(Segment {
            frame,
            row,
            columns: column..column + (end - token),
        });
        token = end;
    }
    found
}

fn coverage(
    mask: &Mask,
    sizes: &Sizes,
    batch: usize,
    (queries, keys): (&Range<usize>, &Range<usize>),
    summaries: (&Summary, &Summary),
) -> Coverage {
    match (mask, summaries) {
        (Mask::Documents(_), (Summary::Numbers(a), Summary::Numbers(b))) => same_numbers(a, b),
        (Mask::BlockSparse(blocks), _) => in_blocks(blocks, sizes, queries, keys),
        (Mask::Video { radius, .. }, (Summary::Segments(a), Summary::Segments(b))) => in_video(a, b, radius),
        (Mask::And(masks), (Summary::Each(a), Summary::Each(b))) => {
            masks
                .iter()
                .zip(a.iter().zip(b))
                .fold(Coverage::All, |so_far, (mask, pair)| match so_far {
                    Coverage::None => Coverage::None,
                    _ => so_far.and(coverage(mask, sizes, batch, (queries, keys), pair)),
                })
        }
        _ => {
            let of = |query| interval(mask, sizes, batch, query);
            match of(queries.start).zip(of(queries.end - 1)) {
                Some((first, last)) if keys.end <= first.0 || keys.start >= last.1 => Coverage::None,
                Some((first, last)) if keys.start >= last.0 && keys.end <= first.1 => Coverage::All,
                _ => Coverage::Partial,
            }
        }
    }
}

fn same_numbers(a: &[u32], b: &[u32]) -> Coverage {
    if a.len() == 1 && a == b {
        return Coverage::All;
    }
    let (mut i, mut j) = (0, 0);
    while i < a.len() && j < b.len() {
        match a[i].cmp(&b[j]) {
            std::cmp::Ordering::Equal => return Coverage::Partial,
            std::cmp::Ordering::Less => i += 1,
            std::cmp::Ordering::Greater => j += 1,
        }
    }
    Coverage::None
}

fn in_blocks(blocks: &BlockSparse, sizes: &Sizes, queries: &Range<usize>, keys: &Range<usize>) -> Coverage {
    let (mut some, mut all) = (false, true);
    for row in queries.start / blocks.query_block..=(queries.end - 1) / blocks.query_block {
        for column in keys.start / blocks.key_block..=(keys.end - 1) / blocks.key_block {
            let allowed = blocks.block(sizes, row, column);
            some |= allowed;
            all &= allowed;
            if some && !all {
                return Coverage::Partial;
            }
        }
    }
    if all { Coverage::All } else { Coverage::None }
}

fn in_video(queries: &[Segment], keys: &[Segment], radius: &Extent) -> Coverage {
    // Segments are in order, so most pairs of tiles are too far apart in time.
    let (first, last) = (|x: &[Segment]| x[0].frame, |x: &[Segment]| x[x.len() - 1].frame);
    if first(keys) > last(queries).saturating_add(radius.frames)
        || first(queries) > last(keys).saturating_add(radius.frames)
    {
        return Coverage::None;
    }
    let (mut some, mut all) = (false, true);
    for a in queries {
        for b in keys {
            let apart = a.frame.abs_diff(b.frame) > radius.frames || a.row.abs_diff(b.row) > radius.height;
            let (left, right) = (b.columns.start, b.columns.end - 1);
            let none = apart
                || left > (a.columns.end - 1).saturating_add(radius.width)
                || a.columns.start > right.saturating_add(radius.width);
            let farthest = (a.columns.end - 1)
                .abs_diff(left)
                .max(a.columns.start.abs_diff(right));
            some |= !none;
            all &= !none && farthest <= radius.width;
            if some && !all {
                return Coverage::Partial;
            }
        }
    }
    if all { Coverage::All } else { Coverage::None }
}

/// Clears what the mask does not allow.
fn restrict(
    mask: &Mask,
    sizes: &Sizes,
    batch: usize,
    queries: &Range<usize>,
    keys: &Range<usize>,
    bits: &mut Bits,
) {
    // From positions of keys to columns of the rectangle.
    let columns = |from: usize, to: usize| {
        from.clamp(keys.start, keys.end) - keys.start..to.clamp(keys.start, keys.end) - keys.start
    };
    match mask {
        Mask::Full => {}
        Mask::Documents(documents) => {
            let of_keys = &documents.of_keys(batch)[keys.clone()];
            for (row, number) in documents.of_queries(batch)[queries.clone()].iter().enumerate() {
                let mut column = 0;
                for run in of_keys.chunk_by(|a, b| a == b) {
                    if run[0] != *number {
                        bits.clear(row, column..column + run.len());
                    }
                    column += run.len();
                }
            }
        }
        Mask::BlockSparse(blocks) => {
            for (row, query) in queries.clone().enumerate() {
                for column in keys.start / blocks.key_block..=(keys.end - 1) / blocks.key_block {
                    if !blocks.block(sizes, query / blocks.query_block, column) {
                        bits.clear(
                            row,
                            columns(column * blocks.key_block, (column + 1) * blocks.key_block),
                        );
                    }
                }
            }
        }
        Mask::Video { grid, radius } => {
            let Extent { height, width, .. } = grid.extent();
            let runs = segments(grid, keys);
            for (row, query) in queries.clone().enumerate() {
                let [frame, line, column] = grid.place(query);
                let near = runs
                    .iter()
                    .filter(|run| {
                        run.frame.abs_diff(frame) <= radius.frames && run.row.abs_diff(line) <= radius.height
                    })
                    .map(|run| {
                        let start = (run.frame * height + run.row) * width;
                        let from = run.columns.start.max(column.saturating_sub(radius.width));
                        let to = run
                            .columns
                            .end
                            .min(column.saturating_add(radius.width).saturating_add(1));
                        columns(start + from, start + to.max(from))
                    });
                bits.keep(row, near);
            }
        }
        Mask::And(masks) => masks
            .iter()
            .for_each(|mask| restrict(mask, sizes, batch, queries, keys, bits)),
        Mask::Causal | Mask::Window { .. } | Mask::KeyPadding(_) | Mask::Packed(_) => {
            for (row, query) in queries.clone().enumerate() {
                if let Some((from, to)) = interval(mask, sizes, batch, query) {
                    bits.keep(row, std::iter::once(columns(from, to)));
                }
            }
        }
    }
}
