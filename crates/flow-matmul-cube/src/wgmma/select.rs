//! Which tiles a call gets: a fixed table of shapes, measured on an H100 (`bench/results/matmul-ladder.md`).

use super::Tiles;
use crate::problem::{Accumulation, Epilogue, Layout, Matmul, Refusal, Storage, no};
use crate::schedule::{STEP, Tiling};
use flow_cube::wgmma::OperandType;

/// Whether tensor memory access can reach what the call has, and tensor cores multiply it.
///
/// # Errors
/// [`Refusal`] with the reason.
pub fn check(call: &Matmul) -> Result<OperandType, Refusal> {
    let Some(operand_type) = call.element.operand_type() else {
        return no("tensor cores would round f32 factors to TF32; they take bf16 and f16");
    };
    if !(call.n * call.output.bytes()).is_multiple_of(16) {
        return no(format!(
            "rows of {} columns do not end at a multiple of 16 bytes, and tensor memory access writes up to one",
            call.n
        ));
    }
    if call.is_scaled() && !call.k.is_multiple_of(2) {
        return no(format!(
            "rows of codes are copied in pairs, and {} are odd",
            call.k
        ));
    }
    if call.m.div_ceil(64) * call.n.div_ceil(64) > u32::MAX as usize / 64 {
        return no("the result has too many tiles");
    }
    Ok(operand_type)
}

/// Tiles and tiling of a call on a device with `multiprocessors` multiprocessors.
pub fn select(call: &Matmul, operand_type: OperandType, multiprocessors: usize) -> (Tiles, Tiling) {
    let steps = call.steps();
    let low_rank = call.rank > 0;
    let simple = !call.bias && matches!(call.epilogue, Epilogue::Store | Epilogue::Accumulate);
    let candidates: &[Shape] = match call.layout {
        _ if call.n <= 64 => &[Shape::Narrow],
        _ if call.is_scaled() => shapes_of_codes(call),
        Layout::Tn if simple => &[weight_gradient(call, multiprocessors)],
        // Small results have too few large tiles for all multiprocessors.
        _ => &[Shape::PingPong, Shape::Wide, Shape::Small, Shape::Narrow],
    };
    let mut best: Option<(f64, Tiles, bool)> = None;
    for candidate in candidates {
        let tiles = shape(call, operand_type, *candidate);
        let count = call.m.div_ceil(tiles.rows()) * call.n.div_ceil(tiles.columns);
        let tile = (tiles.rows() * tiles.columns) as f64;
        // Time in products of 64 summands of one element by one multiprocessor; the border of a tile is what a block
        // cannot do beside products.
        let border = tile * if tiles.ping_pong { 0.5 } else { 3.0 };
        let waves = count.div_ceil(multiprocessors) as f64;
        let one = steps as f64 * tile * candidate.slowness() + border;
        let whole = waves * one;
        let stream_k = count as f64 / multiprocessors as f64 * one;
        // About two partial tiles for each multiprocessor are written and read, some 30 elements' products each, and two
        // kernels more are launched.
        let reduction = 2.0 * tile * 15.0 + 250_000.0;
        let mut choose = |time: f64, is_stream_k: bool| {
            if best.is_none_or(|(least, ..)| time < least) {
                best = Some((time, tiles, is_stream_k));
            }
        };
        choose(whole, false);
        // A forward product is never cut: its bits would depend on how many rows there are, and with them a sample's on its
        // batch-mates.
        if call.layout != Layout::Nt && simple && !count.is_multiple_of(multiprocessors) {
            choose(stream_k + reduction, true);
        }
    }
    let (_, tiles, stream_k) = best.expect("there are candidates");
    let tiles = Tiles { low_rank, ..tiles };
    let tiling = Tiling {
        stream_k,
        ..tiling(&tiles, multiprocessors)
    };
    (tiles, tiling)
}

/// The tiling by `tiles` on a device with `multiprocessors` multiprocessors, summands whole.
pub fn tiling(tiles: &Tiles, multiprocessors: usize) -> Tiling {
    Tiling {
        rows: tiles.rows(),
        columns: tiles.columns,
        group: if tiles.rows() == 256 { 8 } else { 16 },
        blocks: multiprocessors,
        split_k: 1,
        stream_k: false,
    }
}

/// Tiles that a product of codes may have: those whose sums, scales and bias a thread has registers for.
pub fn shapes_of_codes(call: &Matmul) -> &'static [Shape] {
    match call.storage {
        // Half of the registers for sums are those of a step.
        Storage::E4m3(Accumulation::Promoted) => &[Shape::Medium, Shape::Small, Shape::Narrow],
        Storage::E4m3(Accumulation::Fast) if call.bias => &[Shape::Medium, Shape::Small, Shape::Narrow],
        // Sums that turns exchange cannot be scaled in between.
        Storage::E4m3(Accumulation::Fast) if call.rank > 0 => &[Shape::Wide, Shape::Small, Shape::Narrow],
        Storage::E4m3(Accumulation::Fast) => &[Shape::PingPong, Shape::Wide, Shape::Small, Shape::Narrow],
        Storage::Plain | Storage::E4m3B => &[],
    }
}

/// Tiles of a weight gradient, whose work is balanced over the multiprocessors whatever their number: the largest tiles
/// that keep all of these busy, since larger ones read less; where no tiles do, those of which least is beyond the result.
fn weight_gradient(call: &Matmul, multiprocessors: usize) -> Shape {
    let count = |rows: usize, columns: usize| call.m.div_ceil(rows) * call.n.div_ceil(columns);
    if count(256, 192) >= multiprocessors {
        return Shape::Large;
    }
    let least_beyond = call.n.next_multiple_of(256) <= call.n.next_multiple_of(192);
    match least_beyond || count(128, 256) >= multiprocessors {
        true => Shape::Wide,
        false => Shape::PingPong,
    }
}

/// Tiles that the table chooses from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// 128 x 192, two warpgroups in ping-pong.
    PingPong,
    /// 128 x 256, shared by two warpgroups.
    Wide,
    /// 128 x 192, shared by two warpgroups: for sums of e4m3, of which a thread has two sets.
    Medium,
    /// 256 x 192, shared by two warpgroups.
    Large,
    /// 128 x 128, shared by two warpgroups.
    Small,
    /// 128 x 64, shared by two warpgroups: for few columns.
    Narrow,
}

impl Shape {
    /// Time of a product of an element in proportion to that of large tiles: small ones read more of shared memory for it (160
    /// and 256 bytes a clock, where it gives 128).
    fn slowness(self) -> f64 {
        match self {
            Self::PingPong | Self::Wide | Self::Medium | Self::Large => 1.0,
            Self::Small => 1.25,
            Self::Narrow => 2.0,
        }
    }
}

/// The tiles of `shape`.
pub fn shape(call: &Matmul, operand_type: OperandType, shape: Shape) -> Tiles {
    let (row_groups, columns, stages, ping_pong, subtile_buffers) = match shape {
        Shape::PingPong => (2, 192, 4, true, 2),
        Shape::Wide => (1, 256, 4, false, 2),
        // Three epilogue subtiles of 64 columns take turns at as many places.
        Shape::Medium => (1, 192, 4, false, 3),
        Shape::Large => (2, 192, 3, false, 2),
        Shape::Small => (1, 128, 6, false, 2),
        Shape::Narrow => (1, 64, 8, false, 1),
    };
    Tiles {
        layout: call.layout,
        operand_type,
        warpgroups: 2,
        row_groups,
        columns,
        stages,
        ping_pong,
        subtile_buffers,
        low_rank: call.rank > 0,
        kernel_row: match call.kernel_rows {
            Some(rows) => [call.k / rows.count() / STEP, rows.rows],
            None => [0; 2],
        },
        e4m3: match call.storage {
            Storage::E4m3(accumulation) => Some(accumulation),
            Storage::Plain | Storage::E4m3B => None,
        },
    }
}
