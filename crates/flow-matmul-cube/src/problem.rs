//! A matrix product as a problem: layout, sizes, types and epilogue, and why a backend declines it.

use crate::Element;
use crate::schedule::STEP;
pub use flow_cube::activation::Activation;
pub use flow_registry::Refusal;

/// How the operands of `D [m, n]` lie in memory, rows without gaps between their elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `A [m, k]` and `B [n, k]`: a layer forward, `x Wᵀ`.
    Nt,
    /// `A [m, k]` and `B [k, n]`: the gradient of a layer's input, `dY W`.
    Nn,
    /// `A [k, m]` and `B [k, n]`: the gradient of a layer's weight, `dYᵀ x`, summed over rows.
    Tn,
}

/// What becomes of the sums `S = op(A) op(B) + low rank + bias`, each in f32, before they are rounded and written. Where
/// `S` goes through a function, a gate or a derivative, it is rounded to the operands' type first, so that the result is
/// that of the same steps one by one, bit for bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Epilogue {
    /// `D = S`.
    Store,
    /// `D = D + S`; `D` is f32.
    Accumulate,
    /// `D = other + S`, rounded to the operands' type like a sum that is written first: gradients of one tensor that several
    /// products give.
    Add,
    /// `D = activation(S)`; with `keep_sum`, `S` is written to the operand `other` too, for backward.
    Activate {
        /// The function.
        activation: Activation,
        /// Whether `S` is written.
        keep_sum: bool,
    },
    /// `D = other + gate[row / tokens] ∘ S`, the end of a residual branch; `other [m, n]` is the residual.
    GateAndAdd {
        /// Rows that share a row of the gate.
        tokens: usize,
    },
    /// `D = S ∘ activation'(other)`, where `other [m, n]` are the sums that forward kept.
    TimesDerivative(Activation),
}

impl Epilogue {
    /// Whether the operand `other` is read.
    pub fn reads_other(self) -> bool {
        matches!(
            self,
            Self::Add | Self::GateAndAdd { .. } | Self::TimesDerivative(_)
        )
    }

    /// The epilogue without what kernels are told at run time: one kernel for all numbers of tokens.
    pub fn kind(self) -> Self {
        match self {
            Self::GateAndAdd { .. } => Self::GateAndAdd { tokens: 1 },
            kind => kind,
        }
    }

    /// The activation that is applied, and the one whose derivative is.
    pub(crate) fn functions(self) -> (Option<Activation>, Option<Activation>) {
        match self {
            Self::Activate { activation, .. } => (Some(activation), None),
            Self::TimesDerivative(activation) => (None, Some(activation)),
            _ => (None, None),
        }
    }

    /// Whether the operand `other` is written.
    pub fn writes_other(self) -> bool {
        matches!(self, Self::Activate { keep_sum: true, .. })
    }
}

/// A convolution over pixels as a product, by rows of its kernel.
///
/// A lies in memory as pixels, rows of them, frames of these, with zeros around every picture, channels last. The taps of one row
/// of the kernel are neighbours there, so a row of A is a run of `taps × channels` numbers, and the next row of A begins one pixel
/// later: [`Matrix::stride`](crate::tensors::Matrix::stride) is less than the columns, and rows overlap. The summands of row `r` of
/// the result are rows `r + frame · frame_stride + row · row_stride` of A, for `frame` below `frames` and `row` below `rows`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelRows {
    /// Frames of the kernel.
    pub frames: usize,
    /// Rows of the kernel in a frame.
    pub rows: usize,
    /// Pixels from a frame to the next.
    pub frame_stride: usize,
    /// Pixels from a row to the next.
    pub row_stride: usize,
}

impl KernelRows {
    /// How many there are.
    pub fn count(self) -> usize {
        self.frames * self.rows
    }
}

/// How tensor cores for FP8 add up products of e4m3: their accumulators keep fewer bits than f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Accumulation {
    /// 128 summands at a time in an accumulator, whose sums are added up in f32: the error does not grow with the summands.
    Promoted,
    /// All summands in one accumulator. Faster; measured for 8,192 summands of exact operands, a relative L2 error of 3.3e-3 where the
    /// rounding of results to bf16 alone is 1.7e-3.
    Fast,
}

/// How A and B lie in memory. Codes of FP8 e4m3 are a byte each, in rows of their own stride in bytes; each row has an f32 scale (see
/// [`Scales`](crate::tensors::Scales)), and a value is the product of its code's value and its row's scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Storage {
    /// As numbers of type `element`.
    Plain,
    /// Both as e4m3, in layout `Nt`. The codes are multiplied, and a sum is scaled by its row's and its column's scale before the second
    /// pair and the bias are added. Where the device has no tensor cores for FP8, codes are widened to `element`, which is exact,
    /// and multiplied so.
    E4m3(Accumulation),
    /// B alone as e4m3, in layout `Nt` or `Nn`. Its values are rounded to `element` right before the product: the gradient of an
    /// input from the one copy of a weight, or a layer whose inputs are not quantised.
    E4m3B,
}

/// A product: pure data, so that selections, schedules and compiled kernels can be kept by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Matmul {
    /// Where rows and columns of the operands are.
    pub layout: Layout,
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Summands.
    pub k: usize,
    /// Summands of a second pair of operands of the same layout, summed behind the first; 0 if there is none.
    pub rank: usize,
    /// Type of the operands, of the bias, the gate and `other`.
    pub element: Element,
    /// Type of the result: `element`, or f32.
    pub output: Element,
    /// Whether a row of `n` numbers is added to each row.
    pub bias: bool,
    /// What becomes of the sums.
    pub epilogue: Epilogue,
    /// Groups of rows with a second operand each, 0 if there are none: experts. The rows of A (in `Tn` of both operands) are
    /// sorted by group, and where a group begins is on the device. B, and the bias, are those of the groups one behind the
    /// other; in `Tn` the results are. `m` (in `Tn` `k`) counts the rows of all groups.
    pub groups: usize,
    /// Where the summands are rows of a convolution's kernel; A is `[m + …, k / kernel rows]` then, and may have fewer columns,
    /// which count as zeros. Each kernel row has a multiple of 64 summands.
    pub kernel_rows: Option<KernelRows>,
    /// How A and B lie in memory.
    pub storage: Storage,
}

/// A refusal. Nothing was launched.
pub(crate) fn no<T>(why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::because(why))
}

impl Matmul {
    /// `D = A Bᵀ` and the like in one type, without a second pair, a bias or an epilogue.
    pub fn plain(layout: Layout, [m, n, k]: [usize; 3], element: Element) -> Self {
        Self {
            layout,
            m,
            n,
            k,
            rank: 0,
            element,
            output: element,
            bias: false,
            epilogue: Epilogue::Store,
            groups: 0,
            kernel_rows: None,
            storage: Storage::Plain,
        }
    }

    /// Floating-point operations: two for each summand.
    pub fn flops(&self) -> f64 {
        2.0 * self.m as f64 * self.n as f64 * (self.k + self.rank) as f64
    }

    /// Rows and columns of A in memory, with `k` summands.
    pub fn a_shape(&self, k: usize) -> [usize; 2] {
        if self.layout == Layout::Tn {
            [k, self.m]
        } else {
            [self.m, k]
        }
    }

    /// Rows and columns of B in memory, with `k` summands.
    pub fn b_shape(&self, k: usize) -> [usize; 2] {
        let groups = self.groups.max(1);
        match self.layout {
            Layout::Nt => [groups * self.n, k],
            Layout::Nn => [groups * k, self.n],
            Layout::Tn => [k, self.n],
        }
    }

    /// Rows and columns of the result.
    pub fn d_shape(&self) -> [usize; 2] {
        match self.layout {
            Layout::Tn => [self.groups.max(1) * self.m, self.n],
            _ => [self.m, self.n],
        }
    }

    /// Whether A and B are codes.
    pub fn codes(&self) -> [bool; 2] {
        match self.storage {
            Storage::Plain => [false, false],
            Storage::E4m3(_) => [true, true],
            Storage::E4m3B => [false, true],
        }
    }

    /// Whether sums are scaled by row and column.
    pub fn is_scaled(&self) -> bool {
        matches!(self.storage, Storage::E4m3(_))
    }

    /// The product that kernels compute: where B alone is codes, that of its values.
    pub(crate) fn launched(self) -> Self {
        match self.storage {
            Storage::E4m3B => Self {
                storage: Storage::Plain,
                ..self
            },
            _ => self,
        }
    }

    /// Steps of Hopper's kernel for the first pair: of 128 bytes of a row.
    pub fn first_steps(&self) -> usize {
        match self.storage {
            Storage::E4m3(_) => self.k.div_ceil(2 * STEP),
            _ => self.k.div_ceil(STEP),
        }
    }

    /// Steps of Hopper's kernel for both pairs.
    pub fn steps(&self) -> usize {
        self.first_steps() + self.rank.div_ceil(STEP)
    }

    /// Whether operands may be codes.
    fn check_storage(&self) -> Result<(), Refusal> {
        match self.storage {
            Storage::Plain => Ok(()),
            _ if self.groups > 0 || self.kernel_rows.is_some() => {
                no("factors in FP8 have no groups of rows and are of no convolution")
            }
            Storage::E4m3(_) if self.layout != Layout::Nt => no(format!(
                "tensor cores for FP8 multiply rows with rows: the layout must be Nt, not {:?}; a gradient takes factors in {} and B in \
                 e4m3 (`Storage::E4m3B`)",
                self.layout,
                self.element.name()
            )),
            Storage::E4m3B if self.layout == Layout::Tn => {
                no("a weight gradient has no factor in FP8: its layouts are Nt and Nn")
            }
            _ => Ok(()),
        }
    }

    /// Whether the description makes sense.
    ///
    /// # Errors
    /// [`Refusal`] with what does not.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.m == 0 || self.n == 0 || self.k == 0 {
            return no(format!(
                "a product of {} x {} with {} summands has nothing to compute",
                self.m, self.n, self.k
            ));
        }
        let limit = i32::MAX as usize;
        if self.m > limit || self.n > limit || self.k > limit || self.rank > limit {
            return no(format!("a matrix has at most {limit} rows and columns"));
        }
        if self.output != self.element && self.output != Element::F32 {
            return no(format!(
                "factors of {} give results of {0} or f32, not of {}",
                self.element.name(),
                self.output.name()
            ));
        }
        if self.groups > 0 && self.rank > 0 {
            return no("groups of rows have no second pair of factors");
        }
        if self.groups > 0 && self.layout == Layout::Tn && self.bias {
            return no("a weight gradient of groups has no bias");
        }
        if let Some(rows) = self.kernel_rows {
            let plain = self.layout == Layout::Nt && self.rank == 0 && self.groups == 0;
            if !plain || rows.count() == 0 || !self.k.is_multiple_of(64 * rows.count()) {
                return no(format!(
                    "a convolution is a product in layout Nt, without a second pair and without groups, of a multiple of 64 summands for \
                     each of the kernel's rows; this has {} for {} rows",
                    self.k,
                    rows.count()
                ));
            }
        }
        self.check_storage()?;
        match self.epilogue {
            Epilogue::Accumulate if self.output != Element::F32 => no(format!(
                "sums are accumulated in f32, not in {}",
                self.output.name()
            )),
            Epilogue::GateAndAdd { tokens: 0 } => no("a row of the gate is for at least one token"),
            Epilogue::Add
            | Epilogue::Activate { .. }
            | Epilogue::GateAndAdd { .. }
            | Epilogue::TimesDerivative(_)
                if self.output != self.element =>
            {
                no(format!(
                    "activations, gates, derivatives and sums with another matrix give results of {}, the type of the factors, not f32",
                    self.element.name()
                ))
            }
            _ => Ok(()),
        }
    }
}
