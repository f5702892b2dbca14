//! An attention problem: its sizes and type, and why a backend declines it.

use flow_attention_mask::Sizes;
use flow_cube::wgmma::OperandType;
pub use flow_registry::Refusal;

/// The problem of one call. `[B, H, S, D]` throughout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    /// Samples.
    pub batch: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values; divides `heads`.
    pub kv_heads: usize,
    /// Rows of queries.
    pub queries: usize,
    /// Rows of keys in the first segment and the second, 0 if there is none.
    pub keys: [usize; 2],
    /// Channels of a head.
    pub head_dim: usize,
    /// Element type.
    pub operand_type: OperandType,
}

/// Refuses a scale of the scores with which the tensor cores' kernels would not find a row's largest score: they look for it
/// before they multiply.
///
/// # Errors
/// [`Refusal`].
pub fn check_scale(scale: f32) -> Result<(), Refusal> {
    if scale.is_finite() && scale > 0.0 {
        return Ok(());
    }
    Err(Refusal::because(format!(
        "the factor on the scores must be above 0 and finite, not {scale}"
    )))
}

impl Problem {
    /// Sizes, as masks want them.
    pub fn sizes(&self) -> Sizes {
        Sizes {
            batch: self.batch,
            queries: self.queries,
            kv_segments: self.keys,
        }
    }

    /// Whether these kernels serve the call.
    ///
    /// # Errors
    /// [`Refusal`] with the reason.
    pub fn check(&self) -> Result<(), Refusal> {
        let no = |why: String| Err(Refusal::because(why));
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(8) || self.head_dim > 256 {
            return no(format!(
                "the kernels for tensor cores want heads of a multiple of 8 channels, at most 256, not of {}",
                self.head_dim
            ));
        }
        if self.batch == 0 || self.heads == 0 || self.queries == 0 || self.keys[0] == 0 {
            return no("there are no samples, heads, queries or keys".into());
        }
        if self.kv_heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            return no(format!(
                "{} heads of queries are no multiple of {} heads of keys",
                self.heads, self.kv_heads
            ));
        }
        if self.batch > 65_535 || self.heads > 65_535 {
            return no("a grid has at most 65,535 samples and 65,535 heads".into());
        }
        Ok(())
    }
}
