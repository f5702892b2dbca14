//! Heads of `[B, S, H, D]` tensors: as matrices to read, as rows that different tasks write.

use flow_core::AttentionShape;
use flow_kernels::host::matrix::Matrix;

/// Sizes of the operands, beside [`AttentionShape`]'s fields.
pub(super) trait Sizes {
    fn query_shape(&self) -> [usize; 4];
    fn key_shape(&self) -> [usize; 4];
    /// Values from one token to the next.
    fn stride(&self) -> usize;
}

impl Sizes for AttentionShape {
    fn query_shape(&self) -> [usize; 4] {
        [self.batch, self.queries, self.heads, self.head_dim]
    }
    fn key_shape(&self) -> [usize; 4] {
        [self.batch, self.keys, self.heads, self.head_dim]
    }
    fn stride(&self) -> usize {
        self.heads * self.head_dim
    }
}

/// `count` tokens of one head from `start` on, as a `[count, head_dim]` matrix within `[B, tokens, H, D]`.
pub(super) fn head<'a>(
    shape: &AttentionShape,
    values: &'a [f32],
    tokens: usize,
    task: usize,
    start: usize,
    count: usize,
) -> Matrix<'a> {
    let (batch, head) = (task / shape.heads, task % shape.heads);
    let offset = (batch * tokens + start) * shape.stride() + head * shape.head_dim;
    Matrix::new(&values[offset..], count, shape.head_dim, shape.stride())
}

/// An output `[B, tokens, H, D]` whose heads are written by different tasks.
pub(super) struct Heads {
    values: *mut f32,
    length: usize,
    tokens: usize,
    heads: usize,
    head_dim: usize,
}

// SAFETY: `row` is told by its callers that tasks write disjoint heads.
unsafe impl Sync for Heads {}
// SAFETY: as above; the pointer's memory outlives the tasks, which end before the borrow in `new` does.
unsafe impl Send for Heads {}

impl Heads {
    pub(super) fn new(values: &mut [f32], tokens: usize, shape: &AttentionShape) -> Self {
        Self {
            values: values.as_mut_ptr(),
            length: values.len(),
            tokens,
            heads: shape.heads,
            head_dim: shape.head_dim,
        }
    }

    /// A token's channels in `task`'s head.
    ///
    /// # Safety
    /// No two tasks may ask for the same head of the same sample, a task may hold one row at a time, and the slice given
    /// to `new` must be alive and not otherwise used.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn row(&self, task: usize, token: usize) -> &mut [f32] {
        let (batch, head) = (task / self.heads, task % self.heads);
        let offset = ((batch * self.tokens + token) * self.heads + head) * self.head_dim;
        assert!(
            token < self.tokens && offset + self.head_dim <= self.length,
            "a row lies within its tensor"
        );
        // SAFETY: in bounds by the assertion, exclusive by the contract of this function.
        unsafe { std::slice::from_raw_parts_mut(self.values.add(offset), self.head_dim) }
    }
}
