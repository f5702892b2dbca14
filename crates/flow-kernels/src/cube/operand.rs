//! Burn's tensors of a CubeCL device as the kernels of `flow-kernels-cube` take them.

use burn::tensor::DType;
use flow_core::RawTensor;
use flow_core::cube::{self, Client, CubeDevice, CubeTensor};
use flow_kernels_cube::cast::{cast, join};
use flow_kernels_cube::runs::{self, Runs};
use flow_kernels_cube::{Buffer, Element, Refusal};

/// A tensor without gaps that begins at a multiple of 16 bytes.
#[derive(Clone, Debug)]
pub(super) struct Operand {
    tensor: CubeTensor,
    element: Element,
}

/// A call that does not fit is a bug of the caller: [`Exec`](flow_core::Exec) checks shapes.
pub(super) fn expect_launched(operation: &str, result: Result<(), Refusal>) {
    if let Err(refused) = result {
        panic!("operation `{operation}`: {refused}");
    }
}

fn element(dtype: DType) -> Element {
    match dtype {
        DType::F32 | DType::Flex32 => Element::F32,
        DType::F16 => Element::F16,
        DType::BF16 => Element::Bf16,
        other => panic!("kernels of CubeCL devices compute on f32, f16 and bf16, not on {other:?}"),
    }
}

pub(super) fn dtype(element: Element) -> DType {
    match element {
        Element::F32 => DType::F32,
        Element::F16 => DType::F16,
        Element::Bf16 => DType::BF16,
    }
}

fn is_aligned(tensor: &CubeTensor) -> bool {
    tensor.handle.offset_start.unwrap_or(0).is_multiple_of(16)
}

fn buffer(tensor: &CubeTensor, element: Element) -> Buffer {
    Buffer {
        handle: tensor.handle.clone(),
        length: tensor.meta.shape().iter().product(),
        element,
    }
}

/// Values of the shortest run that is copied by a kernel of ours.
const SHORTEST_RUN: usize = 8;

/// The length of the runs that the tensor consists of, and their pitch, if they are equally far apart: a part of the columns, of the
/// tokens, or of other axes of a tensor without gaps. None of one without gaps.
fn runs_of(tensor: &CubeTensor) -> Option<[usize; 2]> {
    let (shape, strides) = (tensor.meta.shape(), tensor.meta.strides());
    let axes = shape.iter().zip(strides.iter()).rev();
    let mut axes = axes.filter(|(length, _)| **length != 1).peekable();
    let mut run = 1;
    while let Some((length, _)) = axes.next_if(|(_, stride)| **stride == run) {
        run *= *length;
    }
    let (length, pitch) = axes.next()?;
    let mut reach = length * pitch;
    for (length, stride) in axes {
        if *stride != reach {
            return None;
        }
        reach *= length;
    }
    (run >= SHORTEST_RUN && *pitch >= run && reach > 0).then_some([run, *pitch])
}

/// A copy of a tensor of runs.
fn gathered(tensor: &CubeTensor, [run, pitch]: [usize; 2]) -> CubeTensor {
    let element = element(tensor.dtype);
    let copy = cube::empty_like(tensor, &tensor.meta.shape().to_vec(), tensor.dtype);
    let copied = buffer(&copy, element);
    let count = copied.length / run;
    let x = Buffer {
        length: (count - 1) * pitch + run,
        ..buffer(tensor, element)
    };
    let [from, to] = [pitch, run].map(|pitch| Runs { start: 0, pitch });
    let done = runs::copy(&tensor.client, [count, run], (&x, from), (&copied, to));
    expect_launched("copy", done);
    copy
}

/// The tensor, if it has no gaps and is aligned; else a copy.
fn dense(tensor: &CubeTensor) -> CubeTensor {
    if !tensor.is_contiguous()
        && let Some(runs) = runs_of(tensor)
    {
        return gathered(tensor, runs);
    }
    let tensor = cube::contiguous(tensor.clone());
    if is_aligned(&tensor) {
        return tensor;
    }
    copied(&tensor, element(tensor.dtype), 1.0)
}

/// A copy in its own memory, of type `to`, times `factor`.
fn copied(tensor: &CubeTensor, to: Element, factor: f32) -> CubeTensor {
    let from = element(tensor.dtype);
    let copy = cube::empty_like(tensor, &tensor.meta.shape().to_vec(), dtype(to));
    expect_launched(
        "cast",
        cast(
            &tensor.client,
            &buffer(tensor, from),
            &buffer(&copy, to),
            factor,
            is_aligned(tensor),
        ),
    );
    copy
}

impl Operand {
    /// Reads `tensor`, copying only what is strided or not aligned.
    ///
    /// # Panics
    /// If it is tracked, or on another device: kernels are chosen by device, so this is a bug.
    pub fn read(tensor: &RawTensor) -> Self {
        let tensor = cube::read(tensor).expect("a kernel for CubeCL devices got a plain tensor of one");
        let tensor = dense(tensor);
        Self {
            element: element(tensor.dtype),
            tensor,
        }
    }

    /// Reads `tensor` as values of type `element`.
    pub fn read_as(tensor: &RawTensor, element: Element) -> Self {
        Self::read(tensor).cast(element)
    }

    /// The same values as type `element`.
    pub fn cast(self, element: Element) -> Self {
        if self.element == element {
            return self;
        }
        Self {
            tensor: copied(&self.tensor, element, 1.0),
            element,
        }
    }

    /// The values times `factor`, as type `element`.
    pub fn times(&self, factor: f32, element: Element) -> Self {
        Self {
            tensor: copied(&self.tensor, element, factor),
            element,
        }
    }

    /// A matrix's columns as rows, in memory of its own.
    pub fn transposed(&self) -> Self {
        let (rows, columns) = self.rows_and_columns();
        let turned = cube::view(
            self.tensor.clone(),
            self.tensor.handle.clone(),
            &[columns, rows],
            &[1, columns],
        );
        Self {
            tensor: dense(&turned),
            element: self.element,
        }
    }

    /// The values of all, which are of one type, times their factors, one behind the other, as type `element` and of `shape`.
    ///
    /// # Panics
    /// If they are none, more than [`MOST_JOINED`](flow_kernels_cube::cast::MOST_JOINED), or not as many values as `shape` has.
    pub fn joined(parts: &[(&Self, f32)], shape: &[usize], element: Element) -> Self {
        let joined = parts[0].0.empty(shape, element);
        let parts: Vec<(Buffer, f32)> = parts
            .iter()
            .map(|(part, factor)| (part.buffer(), *factor))
            .collect();
        expect_launched("join", join(joined.client(), &parts, &joined.buffer()));
        joined
    }

    /// `parts` of `[B, S, _]` side by side, `[B, S, sum]`, as type `element`; one alone as it is.
    ///
    /// # Panics
    /// As [`read`](Self::read), or if there is none.
    pub fn side_by_side(parts: &[RawTensor], element: Element) -> Self {
        let parts: Vec<Self> = parts.iter().map(|part| Self::read_as(part, element)).collect();
        if let [part] = parts.as_slice() {
            return part.clone();
        }
        let mut shape = parts[0].shape();
        let widths = parts.iter().map(|part| part.rows_and_columns().1);
        let (rows, pitch) = (parts[0].rows_and_columns().0, widths.clone().sum());
        *shape.last_mut().expect("it has three axes") = pitch;
        let all = parts[0].empty(&shape, element);
        let mut start = 0;
        for (part, width) in parts.iter().zip(widths) {
            let from = (
                &part.buffer(),
                Runs {
                    start: 0,
                    pitch: width,
                },
            );
            let done = runs::copy(
                all.client(),
                [rows, width],
                from,
                (&all.buffer(), Runs { start, pitch }),
            );
            expect_launched("side_by_side", done);
            start += width;
        }
        all
    }

    /// Room on the same device, its values unspecified.
    pub fn empty(&self, shape: &[usize], element: Element) -> Self {
        Self {
            tensor: cube::empty_like(&self.tensor, shape, dtype(element)),
            element,
        }
    }

    /// Room on the device of `like`, whatever type that has, its values unspecified.
    pub fn empty_beside(like: &CubeTensor, shape: &[usize], element: Element) -> Self {
        Self {
            tensor: cube::empty_like(like, shape, dtype(element)),
            element,
        }
    }

    /// Room for 32-bit integers on the same device.
    pub fn empty_indices(&self, shape: &[usize]) -> CubeTensor {
        cube::empty_like(&self.tensor, shape, DType::I32)
    }

    /// Room for as many values of the same type.
    pub fn empty_like(&self) -> Self {
        self.empty(&self.shape(), self.element)
    }

    pub fn shape(&self) -> Vec<usize> {
        self.tensor.meta.shape().to_vec()
    }

    /// Product of all axes but the last, and the last.
    pub fn rows_and_columns(&self) -> (usize, usize) {
        let shape = self.shape();
        let columns = shape.last().copied().unwrap_or(1);
        let count: usize = shape.iter().product();
        (count.checked_div(columns).unwrap_or(0), columns)
    }

    pub fn device(&self) -> &CubeDevice {
        &self.tensor.device
    }

    pub fn element(&self) -> Element {
        self.element
    }

    pub fn client(&self) -> &Client {
        &self.tensor.client
    }

    pub fn buffer(&self) -> Buffer {
        buffer(&self.tensor, self.element)
    }

    /// The tensor without graph.
    pub fn into_plain(self) -> RawTensor {
        cube::wrap(self.tensor)
    }

    /// The tensor without graph, as type `element`: a gradient has the type of what it is the gradient of.
    pub fn into_plain_as(self, element: Element) -> RawTensor {
        self.cast(element).into_plain()
    }
}

/// Changes `tensor` as `change` says: in place if it is dense, of a type in `allowed` and nothing else holds it, on a copy
/// otherwise; of the first type in `allowed` if it is of none of these.
///
/// # Panics
/// As [`Operand::read`].
pub(super) fn update(tensor: &mut RawTensor, allowed: &[Element], change: impl FnOnce(&Client, &Buffer)) {
    let buffer = dense_mut(tensor, allowed);
    let tensor = cube::read(tensor).expect("it was one before");
    change(&tensor.client, &buffer);
}

/// The memory of `tensor` to be written, made as [`update`] says.
///
/// # Panics
/// As [`Operand::read`].
pub(super) fn dense_mut(tensor: &mut RawTensor, allowed: &[Element]) -> Buffer {
    let tensor = cube::read_mut(tensor).expect("a kernel for CubeCL devices got a plain tensor of one");
    let found = element(tensor.dtype);
    let to = if allowed.contains(&found) {
        found
    } else {
        allowed[0]
    };
    if !tensor.is_contiguous() {
        *tensor = cube::contiguous(tensor.clone());
    }
    if to != found || !is_aligned(tensor) || !tensor.can_mut() {
        *tensor = copied(tensor, to, 1.0);
    }
    buffer(tensor, to)
}

/// The memory of a tensor of bits in a 16-bit type to be written: in place if it is dense and nothing else holds it, on a copy
/// otherwise. (A copy by [`dense_mut`] would go through numbers, and some bits are those of no number.)
///
/// # Panics
/// As [`Operand::read`].
pub(super) fn bits_mut(tensor: &mut RawTensor) -> Buffer {
    let tensor = cube::read_mut(tensor).expect("a kernel for CubeCL devices got a plain tensor of one");
    if !tensor.is_contiguous() || !is_aligned(tensor) || !tensor.can_mut() {
        *tensor = tensor.copy();
    }
    buffer(tensor, Element::Bf16)
}
