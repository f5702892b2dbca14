//! Matrices on the device, and the operands of a call.

use crate::Element;
use crate::problem::{Epilogue, KernelRows, Matmul, Refusal, no};
use cubecl_runtime::server::Handle;

/// A matrix on the device, row by row; the elements of a row have no gaps.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// Where it is.
    pub handle: Handle,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
    /// Elements from a row to the next.
    pub stride: usize,
}

impl Matrix {
    /// A matrix without gaps.
    pub fn contiguous(handle: Handle, [rows, columns]: [usize; 2]) -> Self {
        Self {
            handle,
            rows,
            columns,
            stride: columns,
        }
    }

    /// Elements from the first to the last, with both.
    pub(crate) fn elements(&self) -> usize {
        (self.rows - 1) * self.stride + self.columns
    }
}

/// Rows of operands, one for each sample: a chunk of a modulation `[B, chunks, n]`, say.
#[derive(Clone, Debug)]
pub struct Gate {
    /// The buffer it is in.
    pub handle: Handle,
    /// Elements before the first row.
    pub start: usize,
    /// Elements from a sample's row to the next sample's.
    pub stride: usize,
}

impl Gate {
    /// Elements from the beginning of the buffer to the end of the last row.
    pub(crate) fn reach(&self, m: usize, tokens: usize, n: usize) -> usize {
        self.start + (m - 1) / tokens * self.stride + n
    }
}

/// The scales of a matrix of codes: an f32 for each row.
#[derive(Clone, Debug)]
pub struct Scales {
    /// The buffer they are in.
    pub handle: Handle,
    /// Numbers of 4 bytes before the first.
    pub start: usize,
}

/// Operands of a call, and where the result goes. What the call does not name is not there.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    /// First operand.
    pub a: &'a Matrix,
    /// Second operand.
    pub b: &'a Matrix,
    /// The scales of the rows of A and of B, where these are codes.
    pub scales: [Option<&'a Scales>; 2],
    /// The second pair, with `rank` summands.
    pub low_rank: Option<[&'a Matrix; 2]>,
    /// `[n]`, of the operands' type.
    pub bias: Option<&'a Handle>,
    /// Of the operands' type.
    pub gate: Option<&'a Gate>,
    /// What the epilogue reads or writes beside the result, of the operands' type.
    pub other: Option<&'a Matrix>,
    /// Where the rows of each group begin, and where the last ones end: `[groups + 1]` of u32.
    pub offsets: Option<&'a Handle>,
    /// The result.
    pub d: &'a Matrix,
}

impl<'a> Operands<'a> {
    /// Two operands and a result.
    pub fn new(a: &'a Matrix, b: &'a Matrix, d: &'a Matrix) -> Self {
        Self {
            a,
            b,
            scales: [None; 2],
            low_rank: None,
            bias: None,
            gate: None,
            other: None,
            offsets: None,
            d,
        }
    }

    /// Whether these are the operands of `call`. `aligned`: whether rows must begin at multiples of 16 bytes.
    ///
    /// # Errors
    /// [`Refusal`] with what is missing, too much, of another shape, or in the wrong place.
    pub fn check(&self, call: &Matmul, aligned: bool) -> Result<(), Refusal> {
        let (from, to) = (call.element, call.output);
        // Biases and gates are read in pairs.
        let pairs = if aligned { 4 } else { 1 };
        let result = call.d_shape();
        match call.kernel_rows {
            Some(rows) => overlapped("a", self.a, call, rows)?,
            None => self.check_factor(0, call, aligned)?,
        }
        self.check_factor(1, call, aligned)?;
        matrix("d", self.d, result, to, aligned)?;
        given("low_rank", self.low_rank.is_some(), call.rank > 0)?;
        if let Some([t, u]) = self.low_rank {
            matrix("low_rank[0]", t, call.a_shape(call.rank), from, aligned)?;
            matrix("low_rank[1]", u, call.b_shape(call.rank), from, aligned)?;
        }
        given("bias", self.bias.is_some(), call.bias)?;
        if let Some(bias) = self.bias {
            holds("bias", bias, call.n * call.groups.max(1), from, pairs)?;
        }
        given(
            "other",
            self.other.is_some(),
            call.epilogue.reads_other() || call.epilogue.writes_other(),
        )?;
        if let Some(other) = self.other {
            matrix("other", other, result, from, aligned)?;
        }
        given("offsets", self.offsets.is_some(), call.groups > 0)?;
        if let Some(offsets) = self.offsets {
            holds("offsets", offsets, call.groups + 1, Element::F32, 4)?;
        }
        match (self.gate, call.epilogue) {
            (Some(gate), Epilogue::GateAndAdd { tokens }) => {
                let odd = gate.stride % 2 + gate.start % 2;
                if aligned && odd != 0 {
                    return no(format!(
                        "`gate` starts at element {} with a stride of {}; both must be even",
                        gate.start, gate.stride
                    ));
                }
                holds(
                    "gate",
                    &gate.handle,
                    gate.reach(call.m, tokens, call.n),
                    from,
                    pairs,
                )
            }
            (gate, epilogue) => given(
                "gate",
                gate.is_some(),
                matches!(epilogue, Epilogue::GateAndAdd { .. }),
            ),
        }
    }
}

impl Operands<'_> {
    /// Whether A (0) or B (1) is the call's, and so are its scales.
    fn check_factor(&self, index: usize, call: &Matmul, aligned: bool) -> Result<(), Refusal> {
        let (name, x, shape, scales_name) = match index {
            0 => ("a", self.a, call.a_shape(call.k), "scales[0]"),
            _ => ("b", self.b, call.b_shape(call.k), "scales[1]"),
        };
        let are_codes = call.codes()[index];
        given(scales_name, self.scales[index].is_some(), are_codes)?;
        let Some(scales) = self.scales[index] else {
            return matrix(name, x, shape, call.element, aligned);
        };
        // What is widened first is read by words of four.
        let alignment = if aligned && call.is_scaled() { 16 } else { 4 };
        laid_out(name, x, shape, 1, alignment)?;
        holds_bytes(
            name,
            &x.handle,
            x.elements().next_multiple_of(4),
            alignment as u64,
        )?;
        holds(
            scales_name,
            &scales.handle,
            scales.start + x.rows,
            Element::F32,
            4,
        )
    }
}

fn given(name: &str, is: bool, must: bool) -> Result<(), Refusal> {
    match (is, must) {
        (true, false) => no(format!("`{name}` is given, but the call has none")),
        (false, true) => no(format!("`{name}` is missing, but the call has one")),
        _ => Ok(()),
    }
}

fn matrix(name: &str, x: &Matrix, shape: [usize; 2], element: Element, aligned: bool) -> Result<(), Refusal> {
    let alignment = if aligned { 16 } else { 1 };
    laid_out(name, x, shape, element.bytes(), alignment)?;
    holds(name, &x.handle, x.elements(), element, alignment as u64)
}

/// Whether a matrix of numbers of `size` bytes has this shape, and rows that begin at multiples of `alignment` bytes.
pub(crate) fn laid_out(
    name: &str,
    x: &Matrix,
    shape: [usize; 2],
    size: usize,
    alignment: usize,
) -> Result<(), Refusal> {
    if [x.rows, x.columns] != shape {
        return no(format!(
            "`{name}` is {:?}, but must be {shape:?} ([rows, columns])",
            [x.rows, x.columns]
        ));
    }
    if x.stride < x.columns {
        return no(format!(
            "`{name}` has rows of {} elements that begin {} apart",
            x.columns, x.stride
        ));
    }
    let bytes = x.stride * size;
    // Of one row, too, where nothing lies between: which kernel a product gets must not depend on how many rows there are.
    if !bytes.is_multiple_of(alignment) {
        return no(format!(
            "rows of `{name}` begin {bytes} bytes apart; the kernels want a multiple of {alignment}"
        ));
    }
    Ok(())
}

/// Pixels of a convolution: rows that overlap, and all that the result's rows read.
fn overlapped(name: &str, x: &Matrix, call: &Matmul, rows: KernelRows) -> Result<(), Refusal> {
    let reach = (rows.frames - 1) * rows.frame_stride + (rows.rows - 1) * rows.row_stride;
    let columns = call.k / rows.count();
    if x.rows < call.m + reach || x.columns > columns || x.stride == 0 {
        return no(format!(
            "`{name}` is {:?}, but must have {} rows or more and at most {columns} columns",
            [x.rows, x.columns],
            call.m + reach
        ));
    }
    let bytes = x.stride * call.element.bytes();
    if !bytes.is_multiple_of(16) {
        return no(format!(
            "pixels of `{name}` begin {bytes} bytes apart; tensor memory access wants a multiple of 16"
        ));
    }
    holds(name, &x.handle, x.elements(), call.element, 16)
}

fn holds(
    name: &str,
    handle: &Handle,
    elements: usize,
    element: Element,
    alignment: u64,
) -> Result<(), Refusal> {
    holds_bytes(name, handle, elements * element.bytes(), alignment)
}

/// Whether a buffer holds `reach` bytes and begins at a multiple of `alignment`.
pub(crate) fn holds_bytes(name: &str, handle: &Handle, reach: usize, alignment: u64) -> Result<(), Refusal> {
    let bytes = handle.size_in_used() as usize;
    if reach > bytes {
        return no(format!(
            "`{name}` reaches byte {reach}, but its buffer holds {bytes}"
        ));
    }
    let offset = handle.offset_start.unwrap_or(0);
    if !offset.is_multiple_of(alignment) {
        return no(format!(
            "`{name}` begins at byte {offset} of its buffer; the kernels want a multiple of {alignment}"
        ));
    }
    Ok(())
}
