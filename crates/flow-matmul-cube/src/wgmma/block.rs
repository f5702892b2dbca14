//! What the functions of the kernel share: a block's memory, a thread's place, and the tile at work.

use super::arguments::Sizes;
use super::tiles::Tiles;
use crate::epilogue::CompiledEpilogue;
use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::generic_to_shared;
use flow_cube::barrier;
use flow_cube::tma;
use flow_cube::warpgroup::warpgroup_and_thread;
use flow_cube::wgmma;

/// Shared memory of a block.
#[derive(CubeType)]
pub(super) struct Memory<E: Numeric, O: Numeric> {
    /// The stages' tiles of A.
    pub(super) a_tiles: Shared<[E]>,
    /// The stages' tiles of B.
    pub(super) b_tiles: Shared<[E]>,
    /// Places of epilogue subtiles, `subtile_buffers` for each warpgroup.
    pub(super) places: Shared<[O]>,
    /// Address of the barrier of the first stage: a phase is complete when the copies of a step are.
    pub(super) full: u32,
    /// Address of the barrier of the first place: a phase is complete when what the epilogue reads is there.
    pub(super) loaded: u32,
    /// How many warps have read each stage.
    pub(super) used: Shared<[u32]>,
}

/// A thread, and where it finds what it reads and writes.
#[derive(CubeType)]
pub(super) struct Thread {
    /// Its warpgroup among those of the block.
    pub(super) warpgroup: u32,
    /// Its index within the warpgroup.
    pub(super) index: u32,
    /// Its lane within the warp.
    pub(super) lane: u32,
    /// Its first row within 64 rows of sums; the second one is 8 further on.
    pub(super) row: u32,
    /// The first of its warpgroup's row groups within a tile.
    pub(super) row_group: u32,
    /// Descriptor of its rows of A in the first stage.
    pub(super) a_at: u64,
    /// Descriptor of B in the first stage.
    pub(super) b_at: u64,
    /// Address of the first place of an epilogue subtile.
    pub(super) places: u32,
    /// Address of the first count of [`Memory::used`].
    pub(super) used: u32,
    /// The first of its warpgroup's places.
    pub(super) first_place: u32,
    /// Behind the last item of the block.
    pub(super) last: u32,
}

/// A block, as one of its threads sees it.
#[derive(CubeType)]
pub(super) struct Block<E: Numeric, O: Numeric> {
    pub(super) memory: Memory<E, O>,
    pub(super) thread: Thread,
    pub(super) sizes: Sizes,
}

/// Where the products are in the ring of stages.
#[derive(CubeType)]
pub(super) struct Position {
    pub(super) stage: u32,
    /// Parity of the phase in which the stage is full.
    pub(super) phase: u32,
}

/// The tile that a warpgroup computes.
#[derive(CubeType)]
pub(super) struct Tile {
    /// First row of the warpgroup's sums.
    pub(super) row: u32,
    /// First column.
    pub(super) column: u32,
    /// Columns of the result.
    pub(super) columns: u32,
    /// Its steps, those of the second pair of factors with them.
    pub(super) steps: u32,
    /// Its item.
    pub(super) item: u32,
    /// How many tiles the warpgroup computed before.
    pub(super) round: u32,
}

/// Sums of a tile: those of the first 64 rows, and of the last ones; of tiles with one row group both are the same.
#[derive(CubeType)]
pub(super) struct Sums<N: Size> {
    pub(super) first: Vector<f32, N>,
    pub(super) last: Vector<f32, N>,
}

/// From a panel of 64 rows of a tile to the next, in bytes; of tiles that are one panel, 16 (PTX ISA: not used).
fn leading(transposed: bool) -> u32 {
    if transposed { 8192 } else { 16 }
}

/// The block's shared memory, with barriers that all of its threads see.
#[cube]
pub(super) fn allocate<E: Numeric, O: Numeric>(
    #[comptime] tiles: Tiles,
    #[comptime] epilogue: CompiledEpilogue,
) -> Memory<E, O> {
    let stages = comptime!(tiles.stages);
    let places = comptime!(tiles.warpgroups * tiles.subtile_buffers);
    let width = comptime!(epilogue.subtile_columns());
    let a_tiles: Shared<[E]> = Shared::new_aligned_slice(comptime!(tiles.a_elements() * stages), 1024usize);
    let b_tiles: Shared<[E]> = Shared::new_aligned_slice(comptime!(tiles.b_elements() * stages), 1024usize);
    let place_memory: Shared<[O]> = Shared::new_aligned_slice(comptime!(places * 64 * width), 1024usize);
    let full: Shared<[u64]> = Shared::new_slice(stages);
    let full = barrier::first(&full);
    let loaded: Shared<[u64]> = Shared::new_slice(places);
    let loaded = barrier::first(&loaded);
    let mut used: Shared<[u32]> = Shared::new_slice(stages);

    if UNIT_POS == 0 {
        #[unroll]
        for s in 0..stages {
            barrier::init(barrier::at(full, s));
            used[s] = 0u32;
        }
        #[unroll]
        for p in 0..places {
            barrier::init(barrier::at(loaded, p));
        }
        tma::fence();
    }
    sync_cube();
    Memory::<E, O> {
        a_tiles,
        b_tiles,
        places: place_memory,
        full,
        loaded,
        used,
    }
}

/// This thread of a block whose items end before `last`.
#[cube]
pub(super) fn this_thread<E: Numeric, O: Numeric>(
    memory: &Memory<E, O>,
    last: u32,
    #[comptime] tiles: Tiles,
) -> Thread {
    let (warpgroup, index) = warpgroup_and_thread(comptime!(tiles.warpgroups), true);
    let lane = index % 32;
    let row = (index / 32) * 16 + lane / 4;
    // SAFETY: the address of the block's own shared memory; by the sizes of the tiles, what is read and
    // written there stays within it.
    let a_base = generic_to_shared::<E>(unsafe { memory.a_tiles.as_ptr_unchecked() });
    // SAFETY: as above.
    let b_base = generic_to_shared::<E>(unsafe { memory.b_tiles.as_ptr_unchecked() });
    // SAFETY: as above.
    let places = generic_to_shared::<O>(unsafe { memory.places.as_ptr_unchecked() });
    // SAFETY: as above.
    let used = generic_to_shared::<u32>(unsafe { memory.used.as_ptr_unchecked() });
    let row_group = if comptime!(tiles.ping_pong) {
        0u32.runtime()
    } else {
        warpgroup * comptime!(tiles.row_groups as u32)
    };
    let a_at = wgmma::descriptor(
        a_base + row_group * 8192,
        comptime!(leading(tiles.a_transposed())),
        1024u32,
    );
    let b_at = wgmma::descriptor(b_base, comptime!(leading(tiles.b_transposed())), 1024u32);
    let first_place = warpgroup * comptime!(tiles.subtile_buffers as u32);
    Thread {
        warpgroup,
        index,
        lane,
        row,
        row_group,
        a_at,
        b_at,
        places,
        used,
        first_place,
        last,
    }
}

/// Moves on by a stage.
#[cube]
pub(super) fn step_on(position: &mut Position, #[comptime] stages: usize) {
    position.stage += 1;
    if position.stage == comptime!(stages as u32) {
        position.stage = 0u32;
        position.phase ^= 1;
    }
}

/// Moves on to stage `at`, counted on behind the last one of the ring.
#[cube]
pub(super) fn move_on(position: &mut Position, at: u32, #[comptime] stages: usize) {
    position.phase ^= (at / comptime!(stages as u32)) % 2;
    position.stage = at % comptime!(stages as u32);
}
