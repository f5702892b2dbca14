//! How the portable kernels cut their work, within 32 KiB of shared memory.

/// Threads of a block: 16 along columns times 16 along rows.
pub const THREADS: usize = 256;

/// Rows of a block: queries, or keys for the gradients of keys and values.
pub const ROWS: usize = 64;

/// Channels, or columns, that pass through shared memory at a time.
pub(super) const CHUNK: usize = 16;

/// Shared memory that every device has, in bytes (Vulkan's limit on Mesa's processor driver, Metal's on Apple silicon).
const SHARED_BYTES: usize = 32 * 1024;

/// Sizes that kernels are compiled for. A thread of column `x` and row `y` (both below 16) owns the rows `y + 16 r` and
/// the columns `x + 16 j`, of scores as of channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tiles {
    /// Channels of a head, at most 256.
    pub head_dim: usize,
    /// Columns of a tile: 64, or 32 where shared memory has no room for more.
    pub columns: usize,
}

/// Where a chunk of channels goes in a stage, known at compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ChannelTile {
    /// Its first element.
    pub at: usize,
    /// Rows, or columns, of a channel.
    pub count: usize,
    /// Channels of a head.
    pub head_dim: usize,
}

impl ChannelTile {
    /// The chunk of rows.
    pub(super) fn rows(tiles: Tiles) -> Self {
        Self {
            at: 0,
            count: ROWS,
            head_dim: tiles.head_dim,
        }
    }

    /// The chunk of columns.
    pub(super) fn columns(tiles: Tiles) -> Self {
        Self {
            at: CHUNK * (ROWS + 1),
            count: tiles.columns,
            head_dim: tiles.head_dim,
        }
    }
}

impl Tiles {
    /// The tiles for heads of `head_dim` channels.
    pub fn new(head_dim: usize) -> Self {
        let wide = Self {
            head_dim,
            columns: 64,
        };
        match wide.shared_bytes() <= SHARED_BYTES {
            true => wide,
            false => Self {
                head_dim,
                columns: 32,
            },
        }
    }

    /// Shared memory of the kernel that needs most, in bytes.
    pub fn shared_bytes(&self) -> usize {
        4 * (self.stage_elements() + self.scores_elements() + ROWS * (CHUNK + 1))
    }

    /// Channels, rounded up to a multiple of [`CHUNK`].
    pub(super) fn channels(&self) -> usize {
        self.head_dim.next_multiple_of(CHUNK)
    }

    /// Channels of a row that one thread owns.
    pub(super) fn owned_channels(&self) -> usize {
        self.channels() / 16
    }

    /// Columns of a tile that one thread owns.
    pub(super) fn owned_columns(&self) -> usize {
        self.columns / 16
    }

    /// Elements of a stage: a chunk of channels of rows and of columns, or a chunk of columns with all
    /// channels. One more than there are, so that threads meet different banks.
    pub(super) fn stage_elements(&self) -> usize {
        (CHUNK * (ROWS + 1 + self.columns + 1)).max(CHUNK * self.channels())
    }

    /// Elements of a tile of scores.
    pub(super) fn scores_elements(&self) -> usize {
        ROWS * (self.columns + 1)
    }
}
