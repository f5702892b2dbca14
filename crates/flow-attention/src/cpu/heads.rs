//! Heads of `[B, S, H, D]` tensors: as matrices to read, as rows that different tasks write.

use flow_core::AttentionCall;
use flow_kernels::host::matrix::Matrix;

/// Sizes of a tensor `[batch, tokens, heads, head_dim]` without gaps, as far as finding a head needs them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    tokens: usize,
    heads: usize,
    head_dim: usize,
}

impl Layout {
    /// Of queries, and of what has their shape.
    pub(super) fn of_queries(call: &AttentionCall) -> Self {
        Self {
            tokens: call.queries,
            heads: call.heads,
            head_dim: call.head_dim,
        }
    }

    /// Of keys and of values of a part.
    pub(super) fn of_keys(call: &AttentionCall, part: usize) -> Self {
        Self {
            tokens: call.keys[part],
            heads: call.kv_heads,
            head_dim: call.head_dim,
        }
    }

    fn offset(&self, [batch, head]: [usize; 2], token: usize) -> usize {
        ((batch * self.tokens + token) * self.heads + head) * self.head_dim
    }

    /// `count` tokens of one head (sample and number) from `start` on, as a `[count, head_dim]` matrix.
    pub(super) fn head<'a>(
        &self,
        values: &'a [f32],
        head: [usize; 2],
        start: usize,
        count: usize,
    ) -> Matrix<'a> {
        Matrix::new(
            &values[self.offset(head, start)..],
            count,
            self.head_dim,
            self.heads * self.head_dim,
        )
    }
}

/// An output `[B, tokens, H, D]` whose heads are written by different tasks.
pub(super) struct Heads {
    values: *mut f32,
    length: usize,
    layout: Layout,
}

// SAFETY: `row` is told by its callers that tasks write disjoint heads.
unsafe impl Sync for Heads {}
// SAFETY: as above; the pointer's memory outlives the tasks, which end before the borrow in `new` does.
unsafe impl Send for Heads {}

impl Heads {
    pub(super) fn new(values: &mut [f32], layout: Layout) -> Self {
        Self {
            values: values.as_mut_ptr(),
            length: values.len(),
            layout,
        }
    }

    /// A token's channels in a head (sample and number).
    ///
    /// # Safety
    /// No two tasks may ask for the same head of the same sample, a task may hold one row at a time, and the slice given
    /// to `new` must be alive and not otherwise used.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn row(&self, head: [usize; 2], token: usize) -> &mut [f32] {
        let offset = self.layout.offset(head, token);
        let head_dim = self.layout.head_dim;
        assert!(
            token < self.layout.tokens && offset + head_dim <= self.length,
            "a row lies within its tensor"
        );
        // SAFETY: in bounds by the assertion, exclusive by the contract of this function.
        unsafe { std::slice::from_raw_parts_mut(self.values.add(offset), head_dim) }
    }
}
