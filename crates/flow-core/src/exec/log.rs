//! Which kernels answered: for logs and the run manifest.

use crate::ops::AttentionCall;
use burn::tensor::DType;
use std::fmt;
use std::sync::{Mutex, MutexGuard};

/// One kind of attention call, and the kernel that served it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttentionUse {
    /// Samples, query tokens, key tokens of both parts, heads of queries and of keys, channels of a head.
    sizes: [usize; 7],
    dtype: DType,
    masked: bool,
    biased: bool,
    kernel: String,
}

impl AttentionUse {
    /// The kernel's name.
    pub fn kernel(&self) -> &str {
        &self.kernel
    }
}

impl fmt::Display for AttentionUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [batch, queries, first, second, heads, kv_heads, head_dim] = self.sizes;
        write!(f, "B {batch}, S {queries}, T {first}")?;
        if second > 0 {
            write!(f, " + {second}")?;
        }
        write!(f, ", H {heads}")?;
        if kv_heads != heads {
            write!(f, " over {kv_heads}")?;
        }
        let mask = if self.masked { ", masked" } else { "" };
        let bias = if self.biased { ", biased" } else { "" };
        write!(f, ", D {head_dim}, {:?}{mask}{bias}: {}", self.dtype, self.kernel)
    }
}

/// The kinds of attention call seen so far, in the order of their first call. Shared by all plans made of one.
#[derive(Debug, Default)]
pub struct AttentionLog(Mutex<Vec<AttentionUse>>);

impl AttentionLog {
    /// Notes `call`, which `kernel` served, unless it was seen before.
    pub(crate) fn note(&self, call: &AttentionCall, kernel: impl FnOnce() -> Option<String>) {
        let [first, second] = call.keys;
        let sizes = [
            call.batch,
            call.queries,
            first,
            second,
            call.heads,
            call.kv_heads,
            call.head_dim,
        ];
        let (dtype, masked, biased) = (call.dtype, call.mask.is_some(), call.bias.is_some());
        let mut seen = self.lock();
        let is_this = |known: &AttentionUse| {
            known.sizes == sizes && known.dtype == dtype && known.masked == masked && known.biased == biased
        };
        if seen.iter().any(is_this) {
            return;
        }
        // A call that was served has a kernel.
        if let Some(kernel) = kernel() {
            seen.push(AttentionUse {
                sizes,
                dtype,
                masked,
                biased,
                kernel,
            });
        }
    }

    /// The kinds of call from the `known`-th on.
    pub fn since(&self, known: usize) -> Vec<AttentionUse> {
        self.lock().get(known..).unwrap_or_default().to_vec()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<AttentionUse>> {
        // Entries are pushed whole, so a panic elsewhere leaves a usable list.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
